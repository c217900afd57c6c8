# The server: build the top folder first (make build), then
#   docker build -f deploy/docker/server.Dockerfile -t scuda-server .
# Metrics are for the container itself; name an address that only your monitoring reaches to have them outside
# (compose.yaml does, on the network of its services).
# The driver comes from the host by the NVIDIA container toolkit.
# Workers share the user scuda, confined by Landlock and seccomp as far as kernel and container engine have them. For a
# user for each tenant run it with
#   --user 0 --cap-drop ALL --cap-add SETUID --cap-add SETGID --cap-add KILL --security-opt no-new-privileges
# and a volume for the state folder (SCUDA_STATE_DIR), as compose.yaml does. No control group is delegated to a
# container: --worker-memory and its like do not work there. The log says at the start what is given and what is not.
FROM debian:12-slim
COPY build/scuda /usr/bin/scuda
COPY build/lib /usr/bin/lib
RUN useradd --system --create-home scuda
USER scuda
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
EXPOSE 14833
HEALTHCHECK CMD ["/usr/bin/scuda", "info", "--server", "127.0.0.1:14833", "--token-file", "/run/secrets/scuda_token"]
ENTRYPOINT ["/usr/bin/scuda"]
CMD ["serve", "0.0.0.0:14833", "--token-file", "/run/secrets/scuda_token", "--metrics", "127.0.0.1:9836"]
