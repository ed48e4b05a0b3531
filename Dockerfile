# The relay in an image that has nothing else: no shell, no package manager. CI lints it, and runs its file system in
# a chroot (scripts/test-container.sh); it does not build it, for want of a container engine.
#
#   docker build --build-arg WALRELAY_COMMIT="$(git log -1 --format='%h %cs')" --tag walrelay .
FROM rust:1.95.0-slim-bookworm AS build
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates g++ libssl-dev make pkg-config zlib1g-dev \
    && rm -rf /var/lib/apt/lists/*
# Without rust-toolchain.toml (.dockerignore): the image's compiler is the one it names.
WORKDIR /src
COPY . .
# What `walrelay --version` prints beside the version: the repository is not in the build context.
ARG WALRELAY_COMMIT
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --locked --release -p walrelay \
    && deploy/container/root.sh target/release/walrelay /root-of-image

FROM scratch
ARG WALRELAY_COMMIT
LABEL org.opencontainers.image.title="walrelay" \
      org.opencontainers.image.description="Relays a Postgres outbox by logical replication" \
      org.opencontainers.image.licenses="MIT OR Apache-2.0" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="${WALRELAY_COMMIT}"
COPY --from=build /root-of-image /
USER 10001:10001
# Every command reads it; mount it there.
ENV WALRELAY_CONFIG=/etc/walrelay/walrelay.toml
# Unhealthy as long as events are not relayed: by [http], and without it by the slot.
HEALTHCHECK --interval=10s --timeout=10s --start-period=30s --retries=3 CMD ["walrelay", "status", "--exit-code"]
# SIGTERM drains: what was sent is confirmed before the process ends.
STOPSIGNAL SIGTERM
ENTRYPOINT ["walrelay"]
CMD ["run"]
