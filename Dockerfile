# Trains and serves on CPUs, from the wheel for Python 3.11 that `make wheels` writes into dist/.
#
#   docker build --tag paddlebox .
#   docker run --rm --volume "$PWD:/data" paddlebox train -c config.yaml --run-dir runs/first
#   docker run --rm --volume "$PWD:/data" --publish 127.0.0.1:8000:8000 paddlebox \
#     serve first.export --host 0.0.0.0 --port 8000
FROM python:3.11-slim-bookworm

# Paddle needs libgomp. Its version is that of the image's distribution.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libgomp1 \
    && rm -rf /var/lib/apt/lists/*

RUN --mount=type=bind,source=dist,target=/dist \
    pip install --no-cache-dir paddlepaddle==3.3.1 "$(ls /dist/paddlebox-*-cp311-*.whl)[serve]"

# This user writes into /data, which is mounted from the host. docker run --user names another.
RUN useradd --create-home --uid 1000 paddlebox
USER 1000
WORKDIR /data

ENTRYPOINT ["paddlebox"]
CMD ["--help"]
