-- The database of the inventory. `walrelay init --consumer` has made processed_events in it.
CREATE TABLE stock (
    article int PRIMARY KEY,
    units   int NOT NULL
);
INSERT INTO stock SELECT article, 100000 FROM generate_series(1, 5) AS article;

-- No key: a movement that happens twice must be seen.
CREATE TABLE stock_moves (
    order_id uuid NOT NULL,
    article  int NOT NULL,
    units    int NOT NULL
);
