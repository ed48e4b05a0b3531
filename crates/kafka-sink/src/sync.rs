pub(crate) use walrelay_sink::lock;
