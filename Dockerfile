# bringup by itself:               docker build -t bringup .
# bringup in front of an engine:   docker build --build-arg BASE=lmsysorg/sglang:v0.5.12 -t sglang-bringup .
#
# Any image with Python 3.11 or later and its venv module will do. An image that has an engine already needs two lines:
#   RUN python3 -m venv /opt/bringup && /opt/bringup/bin/pip install --no-cache-dir <this directory, or its wheel>
#   ENTRYPOINT ["/opt/bringup/bin/bringup", "run", "--listen", "0.0.0.0:8420", "--"]
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
# Where packages come from, if not from PyPI itself: --build-arg PIP_INDEX_URL=..., or a whole pip.conf (a password, a
# certificate of one's own) with --secret id=pip,src=pip.conf, which stays in no layer.
ARG PIP_INDEX_URL
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY app app
COPY rules rules
COPY fixtures fixtures
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    python3 -m venv /opt/bringup && /opt/bringup/bin/pip install --no-cache-dir ".[postgres]"

FROM ${BASE}
LABEL org.opencontainers.image.title="bringup" org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/bringup /opt/bringup
# Not root, and its own python is not on PATH: `python3` stays the engine's.
RUN useradd --uid 10001 --create-home --shell /usr/sbin/nologin bringup \
    && install -d -o bringup -g bringup /var/lib/bringup /etc/bringup \
    && ln -s /opt/bringup/bin/bringup /usr/local/bin/bringup
ENV XDG_STATE_HOME=/var/lib PYTHONUNBUFFERED=1
USER 10001
WORKDIR /home/bringup
VOLUME /var/lib/bringup
EXPOSE 8420
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["/opt/bringup/bin/python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8420/healthz', timeout=4)"]
ENTRYPOINT ["/opt/bringup/bin/bringup"]
CMD ["serve", "/etc/bringup/bringup.toml"]
