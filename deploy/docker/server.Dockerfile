# The server, from source:
#   docker build -f deploy/docker/server.Dockerfile --build-arg SCUDA_VERSION="$(./version.sh)" -t scuda-server .
# Metrics are for the container itself; name an address that only your monitoring reaches to have them outside
# (compose.yaml does, on the network of its services).
# The driver comes from the host by the NVIDIA container toolkit.
# Workers share the user scuda, confined by Landlock and seccomp as far as kernel and container engine have them. For a
# user for each tenant run it with
#   --user 0 --cap-drop ALL --cap-add SETUID --cap-add SETGID --cap-add KILL --security-opt no-new-privileges
# and a volume for the state folder (SCUDA_STATE_DIR), as compose.yaml does. No control group is delegated to a
# container: --worker-memory and its like do not work there. The log says at the start what is given and what is not.
ARG GO=golang:1.26-bookworm
ARG BASE=debian:12-slim
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
LABEL org.opencontainers.image.title="scuda server" org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.description="Serves this machine's NVIDIA GPUs to programs of other machines" \
      org.opencontainers.image.version="${SCUDA_VERSION}"
COPY --from=build /out /usr
RUN useradd --system --create-home scuda && install -d -o scuda -g root -m 775 /run/scuda
USER scuda
# The admin socket, for the user scuda and for root without rights over files: docker exec CONTAINER scuda ps
ENV RUNTIME_DIRECTORY=/run/scuda
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
EXPOSE 14833
# /readyz costs nothing; it answers 200 when a worker has opened the driver.
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s CMD ["bash", "-c", \
  "exec 3<>/dev/tcp/127.0.0.1/9836 && printf 'GET /readyz HTTP/1.0\\r\\n\\r\\n' >&3 && head -n 1 <&3 | grep -q ' 200 '"]
ENTRYPOINT ["/usr/bin/scuda"]
CMD ["serve", "0.0.0.0:14833", "--token-file", "/run/secrets/scuda_token", "--metrics", "127.0.0.1:9836"]
