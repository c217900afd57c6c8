#!/usr/bin/env bash
# Builds the programs of a Kubernetes cluster, and Helm (HELM: its package with a version), from Go modules, those that
# are not there yet: HELM=PACKAGE@VERSION build.sh FOLDER. Nothing of scuda changes them, so they stay for the next
# time. Cold it takes about 15 minutes of processor time.
set -euo pipefail
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$(dirname "$0")"
go=${GO:-go}
export CGO_ENABLED=0
version=$("$go" list -m -f '{{.Version}}' k8s.io/kubernetes)
containerd=v2.4.2
word=k8s.io/component-base/version
minor=${version#v1.}
flags="-s -w -X $word.gitVersion=$version -X $word.gitMajor=1 -X $word.gitMinor=${minor%%.*}"

# Those of other versions go.
stamp="kubernetes $version containerd $containerd"
if [ "$(cat "$out/versions" 2>/dev/null)" != "$stamp" ]; then
  (cd "$out" && rm -f etcd kube-apiserver kube-scheduler kube-controller-manager kubelet kubectl containerd \
    containerd-shim-runc-v2 ctr)
  echo "$stamp" > "$out/versions"
fi

program() { # NAME PACKAGE
  test -x "$out/$1" && return
  echo "building $1"
  "$go" build -trimpath -ldflags "$flags" -o "$out/$1.new" "$2" && mv "$out/$1.new" "$out/$1"
}
program etcd go.etcd.io/etcd/server/v3
for name in kube-apiserver kube-scheduler kube-controller-manager kubelet kubectl; do
  program $name k8s.io/kubernetes/cmd/$name
done
for name in containerd containerd-shim-runc-v2 ctr; do
  test -x "$out/$name" && continue
  echo "building $name"
  GOBIN=$out "$go" install -trimpath -ldflags "-s -w" -tags no_btrfs,no_zfs,no_devmapper,no_aufs \
    github.com/containerd/containerd/v2/cmd/$name@$containerd
done
if [ "$(cat "$out/helm.version" 2>/dev/null)" != "$HELM" ]; then
  echo "building helm"
  GOBIN=$out "$go" install -trimpath -ldflags "-s -w" "$HELM"
  echo "$HELM" > "$out/helm.version"
fi
