# A gateway in a container: `docker build -t gatepost .`
# State is in the volume /var/lib/gatepost. EXTRAS chooses what is installed: hub, mcp, pipeline, all.
ARG PYTHON=python:3.13-slim-bookworm

FROM ${PYTHON} AS build
ARG EXTRAS=hub,mcp
WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src src
RUN python -m venv /opt/gatepost \
    && /opt/gatepost/bin/pip install --no-cache-dir --constraint constraints.txt ".[${EXTRAS}]" \
    && /opt/gatepost/bin/pip uninstall --yes pip

FROM ${PYTHON}
RUN useradd --system --uid 7433 --user-group --home-dir /var/lib/gatepost --shell /usr/sbin/nologin gatepost \
    && install -d -o gatepost -g gatepost -m 0700 /var/lib/gatepost
COPY --from=build /opt/gatepost /opt/gatepost
ENV PATH=/opt/gatepost/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    GATEPOST_HOME=/var/lib/gatepost \
    GATEPOST_LISTEN__HOST=0.0.0.0 \
    GATEPOST_LISTEN__ALLOW_PUBLIC=true
USER gatepost
VOLUME /var/lib/gatepost
EXPOSE 7433
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=10s --start-period=30s --retries=3 CMD ["gatepost", "status"]
ENTRYPOINT ["gatepost"]
CMD ["up"]
