# The Kubernetes driver (deploy/kubernetes), from source, with the client's libraries that it brings to the nodes:
#   docker build -f deploy/docker/dra.Dockerfile --build-arg SCUDA_VERSION="$(./version.sh)" -t scuda-dra .
ARG GO=golang:1.26-bookworm
ARG BASE=debian:12-slim
FROM ${GO} AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev libibverbs-dev && \
    rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY go.mod go.sum ./
COPY deploy/kubernetes/go.mod deploy/kubernetes/go.sum deploy/kubernetes/
RUN go mod download && cd deploy/kubernetes && go mod download
COPY . .
ARG SCUDA_VERSION
RUN ./deploy/docker/build.sh /out && cd deploy/kubernetes && \
    CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=${SCUDA_VERSION}" -o /out/bin/scuda-dra ./cmd/scuda-dra

FROM ${BASE}
ARG SCUDA_VERSION
LABEL org.opencontainers.image.title="scuda for Kubernetes" org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.description="Gives out GPUs of scuda's servers by dynamic resource allocation" \
      org.opencontainers.image.version="${SCUDA_VERSION}"
COPY --from=build /out/bin/scuda-dra /usr/bin/scuda-dra
COPY --from=build /out/lib/scuda /usr/lib/scuda
COPY --from=build /out/share /usr/share
ENTRYPOINT ["/usr/bin/scuda-dra"]
