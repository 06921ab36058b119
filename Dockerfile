# The `caju` binary in a small image without a shell, run by a user that is not root.
#
#   docker build -t caju .
#   docker run --rm caju --version
FROM rust:1.94-bookworm AS build
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    scripts/package --out /dist

FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /dist/caju /usr/local/bin/caju
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/caju"]
