# Two stages: the first installs, the second only runs. docker build -t sluice .
FROM python:3.12-slim-bookworm AS build
WORKDIR /build
COPY constraints-run.txt pyproject.toml README.md LICENSE ./
RUN python -m venv /opt/sluice \
 && /opt/sluice/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r constraints-run.txt
COPY gateway gateway
COPY processing processing
COPY storage_tiers storage_tiers
COPY migrations migrations
RUN /opt/sluice/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation . \
 && /opt/sluice/bin/python -m compileall -q /opt/sluice/lib

FROM python:3.12-slim-bookworm
LABEL org.opencontainers.image.title="sluice" \
      org.opencontainers.image.description="An S3-compatible gateway that processes every object before it serves it" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --system --gid 10001 sluice \
 && useradd --system --uid 10001 --gid sluice --home-dir /var/lib/sluice --shell /usr/sbin/nologin sluice \
 && install -d -o sluice -g sluice -m 0711 /var/lib/sluice
COPY --from=build /opt/sluice /opt/sluice
ENV PATH=/opt/sluice/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    SLUICE_DATA_DIR=/var/lib/sluice \
    SLUICE_LOG_FORMAT=json
USER 10001:10001
WORKDIR /var/lib/sluice
VOLUME /var/lib/sluice
# The admin port stays on the container's loopback: publish it by setting SLUICE_ADMIN_HOST, behind a firewall.
EXPOSE 9000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=60s --retries=3 CMD ["sluice", "health"]
ENTRYPOINT ["sluice"]
CMD ["serve"]
