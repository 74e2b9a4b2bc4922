#!/bin/bash
# Makes .engines/lmcache, the environment of the LMCache part of side_by_side.py, on top of .engines/vllm: LMCache 0.5.6 and
# those of its pins that contradict vLLM's. Only the bench needs it.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
[ -x "$root/.engines/vllm/bin/python" ] || { echo "run first: engine-plugins/setup_engine.sh vllm" >&2; exit 1; }
env=$root/.engines/lmcache
rm -rf "$env"
"$root/.venv/bin/python" -m venv --without-pip "$env"
site() { "$1" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])'; }
printf '%s\n' "$(site "$root/.engines/vllm/bin/python")" "$(site "$root/.venv/bin/python")" >"$(site "$env/bin/python")/base.pth"
"$root/.venv/bin/python" -m pip --python "$env/bin/python" install --disable-pip-version-check --quiet --no-deps \
    --ignore-installed lmcache==0.5.6 aiofile==3.12.3 caio==0.12.10 aiofiles==25.1.0 awscrt==0.38.1 nvtx==0.2.17 redis==8.1.0 \
    sortedcontainers==2.4.0 importlib-metadata==8.9.0 zipp==4.1.2 cufile-python==0.2.0 grpcio==1.78.0 \
    grpcio-observability==1.78.0 protobuf==6.33.6 prometheus_client==0.24.1 opentelemetry-api==1.40.0 \
    opentelemetry-sdk==1.40.0 opentelemetry-exporter-prometheus==0.61b0 opentelemetry-semantic-conventions==0.61b0 \
    opentelemetry-exporter-otlp==1.40.0 opentelemetry-exporter-otlp-proto-grpc==1.40.0 \
    opentelemetry-exporter-otlp-proto-http==1.40.0 opentelemetry-exporter-otlp-proto-common==1.40.0 opentelemetry-proto==1.40.0
LMCACHE_DISABLE_BANNER=1 "$env/bin/lmcache" server --help >/dev/null
echo "ready: $env"
