# The exporter, without a compiler, pip or root. How to run it: docs/container.md.
#
#   docker build --tag sglang-pipeline-exporter .
#
# Behind a proxy or a private package index (nothing of it stays in the image):
#   docker build --secret id=apt.conf,src=FILE --secret id=pip.conf,src=FILE --secret id=ca.crt,src=FILE .
# where pip.conf names the certificate as /run/secrets/ca.crt.

FROM debian:bookworm-slim AS build
RUN --mount=type=secret,id=apt.conf,target=/run/secrets/apt.conf \
    [ ! -f /run/secrets/apt.conf ] || export APT_CONFIG=/run/secrets/apt.conf; \
    apt-get update -qq \
 && DEBIAN_FRONTEND=noninteractive apt-get install --no-install-recommends --yes -qq \
      ca-certificates gcc libc6-dev libsystemd-dev pkg-config python3-dev python3-venv >/dev/null
WORKDIR /src
COPY requirements.txt requirements-dev.txt ./
# Wheels are checked and built by a pip of their own, with the pinned build backend; the exporter's
# environment has neither.
RUN --mount=type=secret,id=pip.conf,target=/run/secrets/pip.conf \
    --mount=type=secret,id=ca.crt,target=/run/secrets/ca.crt \
    [ ! -f /run/secrets/pip.conf ] || export PIP_CONFIG_FILE=/run/secrets/pip.conf; \
    python3 -m venv /tools \
 && sed -n '/^setuptools==/,/# via/p' requirements-dev.txt >backend.txt && test -s backend.txt \
 && /tools/bin/pip install --quiet --no-cache-dir --require-hashes --requirement backend.txt \
 && /tools/bin/pip wheel --quiet --no-cache-dir --no-build-isolation --use-pep517 \
      --require-hashes --requirement requirements.txt --wheel-dir /wheels
COPY pyproject.toml README.md ./
COPY exporter exporter
# Stripped: debug information is two fifths of what the wheels bring.
RUN /tools/bin/pip wheel --quiet --no-index --no-deps --no-build-isolation --wheel-dir /wheels . \
 && python3 -m venv --without-pip /opt/sglang-pipeline-exporter \
 && /tools/bin/pip --python /opt/sglang-pipeline-exporter/bin/python \
      install --quiet --no-index --no-deps /wheels/*.whl \
 && find /opt/sglang-pipeline-exporter -name '*.so' -exec strip --strip-unneeded {} +

FROM debian:bookworm-slim
RUN --mount=type=secret,id=apt.conf,target=/run/secrets/apt.conf \
    [ ! -f /run/secrets/apt.conf ] || export APT_CONFIG=/run/secrets/apt.conf; \
    apt-get update -qq \
 && DEBIAN_FRONTEND=noninteractive apt-get install --no-install-recommends --yes -qq \
      ca-certificates libsystemd0 python3 >/dev/null \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/log/apt /var/log/*.log \
 && install --directory --owner=65532 --group=65532 /var/lib/sglang-pipeline-exporter
COPY --from=build /opt/sglang-pipeline-exporter /opt/sglang-pipeline-exporter
COPY deploy/container/healthcheck /usr/local/bin/healthcheck

ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="sglang-pipeline-exporter" \
      org.opencontainers.image.description="Prometheus exporter that shows what each pipeline stage of an SGLang server is doing" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.base.name="debian:bookworm-slim"

# The NVIDIA runtime reads its two: every GPU, and of the driver only libnvidia-ml.so.1.
ENV PATH=/opt/sglang-pipeline-exporter/bin:/usr/local/bin:/usr/bin:/bin \
    STATE_DIRECTORY=/var/lib/sglang-pipeline-exporter \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=utility
VOLUME /var/lib/sglang-pipeline-exporter
EXPOSE 10810
# A number, so that Kubernetes can see that it is not root (runAsNonRoot).
USER 65532:65532
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s CMD ["healthcheck"]
ENTRYPOINT ["sglang-pipeline-exporter"]
CMD ["serve"]
