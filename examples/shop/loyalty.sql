-- The database of the loyalty points. `walrelay init --consumer` has made processed_events in it.
CREATE TABLE points (
    customer text PRIMARY KEY,
    points   int NOT NULL
);

-- No key: points that are given twice must be seen.
CREATE TABLE point_moves (
    order_id uuid NOT NULL,
    customer text NOT NULL,
    points   int NOT NULL
);
