-- The database of the order service. `walrelay init` has made the outbox in it.
CREATE TABLE orders (
    id       uuid PRIMARY KEY,
    customer text NOT NULL,
    article  int NOT NULL,
    quantity int NOT NULL,
    total    int NOT NULL, -- in euros
    taken_at timestamptz NOT NULL DEFAULT now()
);
