# A client, from source: any image with CUDA programs, and scuda's libraries in front of what they would load. No GPU and
# no container toolkit is needed.
#   docker build -f deploy/docker/client.Dockerfile --build-arg BASE=nvidia/cuda:13.0.0-base-ubuntu24.04 \
#     --build-arg SCUDA_VERSION="$(./version.sh)" -t scuda-client .
ARG GO=golang:1.26-bookworm
ARG BASE=nvidia/cuda:13.0.0-base-ubuntu24.04
FROM ${GO} AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev libibverbs-dev && \
    rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG SCUDA_VERSION
RUN ./deploy/docker/build.sh /out

FROM ${BASE}
ARG SCUDA_VERSION
LABEL org.opencontainers.image.title="scuda client" org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.description="NVIDIA GPUs of another machine for the programs of this image" \
      org.opencontainers.image.version="${SCUDA_VERSION}"
COPY --from=build /out /usr
ENV LD_LIBRARY_PATH=/usr/lib/scuda LD_PRELOAD=/usr/lib/scuda/libscuda.so NVIDIA_VISIBLE_DEVICES=void
