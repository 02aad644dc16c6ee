# One image for the program, for workers and for their TLS proxies: `docker build -t tffcl .`
FROM python:3.11-slim-bookworm

RUN apt-get update \
    && apt-get install -y --no-install-recommends stunnel4 openssl \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 tffcl \
    && install -d -o tffcl /runs

COPY requirements.txt /src/
RUN pip install --no-cache-dir --no-deps -r /src/requirements.txt
COPY pyproject.toml README.md LICENSE /src/
COPY tffcl /src/tffcl
RUN pip install --no-cache-dir --no-deps /src

USER tffcl
WORKDIR /runs
ENV MPLCONFIGDIR=/tmp
ENTRYPOINT ["tffcl"]
CMD ["--help"]
