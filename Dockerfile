# docker build -t slowtok .
#
# An engine on the host, and its process visible (Linux):
#   docker run --rm --gpus all --network host --pid host -e SLOWTOK_LISTEN=127.0.0.1:4141 slowtok
# An engine elsewhere:
#   docker run --rm --gpus all -p 127.0.0.1:4141:4141 slowtok serve --allow-no-key \
#     --upstream http://ENGINE:8080
# Without a key (-e SLOWTOK_API_KEY) it does not start where others can reach it. What -p publishes
# on 127.0.0.1 they cannot; slowtok does not see that from inside, so --allow-no-key says it.
#
# NVML (libnvidia-ml) is not in the image: the host's container runtime brings the one that fits
# its driver. Without --gpus the proxy runs, and says that it sees no GPU.
# The extras otel, postgresql and redis are in it, and opened only where a setting asks for them.
# Compose, Kubernetes, systemd: deploy/.

FROM python:3.13-slim-trixie AS build
WORKDIR /src
COPY requirements requirements
RUN python -m venv /opt/build \
 && /opt/build/bin/pip install --no-cache-dir --require-hashes -r requirements/build.lock \
 && python -m venv /opt/slowtok \
 && /opt/slowtok/bin/pip install --no-cache-dir --require-hashes -r requirements/image.lock
COPY . .
RUN /opt/build/bin/python -m hatchling build -t wheel -d /tmp/wheel \
 && /opt/slowtok/bin/pip install --no-cache-dir --no-index --no-deps /tmp/wheel/*.whl

FROM python:3.13-slim-trixie
COPY --from=build /opt/slowtok /opt/slowtok
RUN install -d -o 4141 -g 4141 /var/lib/slowtok
ENV PATH=/opt/slowtok/bin:$PATH \
    HOME=/var/lib/slowtok \
    PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=utility,compute \
    SLOWTOK_LISTEN=0.0.0.0:4141 \
    SLOWTOK_STATE_DIR=/var/lib/slowtok
VOLUME /var/lib/slowtok
EXPOSE 4141
USER 4141:4141
HEALTHCHECK --interval=30s --timeout=5s --start-period=5s \
    CMD ["python", "-c", "import os, urllib.request as u; u.urlopen('http://127.0.0.1:' + os.environ['SLOWTOK_LISTEN'].rpartition(':')[2] + '/slowtok/health', timeout=4)"]
ENTRYPOINT ["slowtok"]
CMD ["serve"]
