# The relay in a small image. Linted in CI, not built there: that takes a container engine.
FROM rust:1.95.0-slim-bookworm AS build
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ libssl-dev make pkg-config zlib1g-dev \
    && rm -rf /var/lib/apt/lists/*
# Without rust-toolchain.toml (.dockerignore): the image's compiler is the one it names.
WORKDIR /src
COPY . .
# What `walrelay --version` prints beside the version: the repository is not in the build context.
#   docker build --build-arg WALRELAY_COMMIT="$(git log -1 --format='%h %cs')" .
ARG WALRELAY_COMMIT
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --locked --release -p walrelay \
    && cp target/release/walrelay /walrelay

FROM debian:bookworm-slim
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates libssl3 zlib1g \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --user-group --uid 10001 --no-create-home --shell /usr/sbin/nologin walrelay
COPY --from=build /walrelay /usr/local/bin/walrelay
USER 10001:10001
# SIGTERM drains: what was sent is confirmed before the process ends.
STOPSIGNAL SIGTERM
ENTRYPOINT ["walrelay"]
CMD ["run", "--config", "/etc/walrelay/walrelay.toml"]
