# A client: any image with CUDA programs, and the shim in front of what they would load. No GPU and no container toolkit is needed.
#   docker build -f deploy/docker/client.Dockerfile --build-arg BASE=nvidia/cuda:13.0.0-base-ubuntu24.04 -t scuda-client .
ARG BASE=nvidia/cuda:13.0.0-base-ubuntu24.04
FROM ${BASE}
COPY build/scuda /opt/scuda/scuda
COPY build/lib /opt/scuda/lib
ENV LD_LIBRARY_PATH=/opt/scuda/lib LD_PRELOAD=/opt/scuda/lib/libscuda.so PATH=/opt/scuda:${PATH}
ENV NVIDIA_VISIBLE_DEVICES=void
