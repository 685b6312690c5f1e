# goen serve, for the CPU. docker build -t goen . && docker run --read-only --tmpfs /tmp -p 127.0.0.1:8000:8000 goen
FROM python:3.11-slim
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 GOEN_CACHE=/tmp/goen MALLOC_ARENA_MAX=2 ORT_DISABLE_TELEMETRY=1
WORKDIR /goen
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir --constraint constraints.txt \
        --index-url https://download.pytorch.org/whl/cpu torch \
    && PIP_CONSTRAINT=constraints.txt pip install --no-cache-dir '.[onnx,serve]' \
    && mkdir /state && chown 10001 /state
USER 10001
VOLUME /state
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/v2/health/ready', timeout=4)"]
ENTRYPOINT ["goen", "serve", "--host", "0.0.0.0"]
CMD ["--state", "/state"]
