#!/usr/bin/env bash
# Records how a new user installs scuda, logs in and runs programs: install.sh PICTURE.svg. The commands are run as they
# are seen, with the archive of make dist, in a network of their own in which gpu1 is a server with a simulated GPU.
# NVIDIA's lister of GPUs comes from Debian's packages.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$(realpath "$1")
here=$PWD
if [ -z "${PICTURE_INSIDE:-}" ]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  go build -o "$work/picture" ./examples/picture
  deploy/dist.sh "$work/dist" >/dev/null
  mkdir -p "$work/home/release"
  cp "$work"/dist/*.tar.gz deploy/install.sh "$work/home/release"
  ssh-keygen -q -t ed25519 -N '' -C '' -f "$work/key"
  cp "$work/key.pub" "$work/home/"
  SCUDA_RELEASE_KEY=$work/key deploy/release.sh sign "$work/home/release"
  . e2e/debian.sh
  debian_apt bookworm non-free
  (cd "$work" && "${apt[@]}" download nvidia-smi && dpkg -x nvidia-smi_*.deb smi)
  cp "$work/smi/usr/lib/nvidia/current/nvidia-smi" examples/julia/julia.ptx "$work/home"
  mkdir "$work/lib" # what programs are linked with, where CUDA's toolkit is not
  cp build/lib/libcuda.so.1 "$work/lib"
  cc -O2 -I shim/include -o "$work/home/julia" examples/julia/julia.c -L "$work/lib" -l:libcuda.so.1 \
    -Wl,--allow-shlib-undefined
  user=()
  [ "$(id -u)" = 0 ] || user=(--map-root-user)
  PICTURE_INSIDE=$work unshare "${user[@]}" --net --mount "$0" "$out"
  exit
fi

work=$PICTURE_INSIDE
ip link set lo up
ip address add 10.0.0.1/32 dev lo
echo "10.0.0.1 gpu1 localhost" >"$work/hosts"
mount --bind "$work/hosts" /etc/hosts
mount --bind "$work/home" /mnt # a short name, as what is seen has it
cd /mnt
"$here/build/scuda" token create -o token >/dev/null
"$here/build/scuda" serve gpu1 --gpu sim --cache-dir none --admin none --state-dir "$work/state" --token-file token \
  --log warn >"$work/server" 2>&1 &
server=$!
trap 'kill $server; wait $server || true' EXIT
for ((i = 0; i < 300; i++)); do
  ! grep -q '^listening on' "$work/server" || break
  sleep 0.1
done
grep -oE 'sha256:[^ ]+' "$work/server" | head -n 1 >fingerprint || { cat "$work/server" >&2; exit 1; }
export HOME=/mnt PATH=/mnt/.local/bin:$PATH
unset XDG_CONFIG_HOME XDG_CACHE_HOME "${!SCUDA_@}"
"$work/picture" -o "$out" -shell \
  'sh release/install.sh --from release --prefix ~/.local --key key.pub' \
  'scuda login gpu1 --token-file token --fingerprint "$(cat fingerprint)"' \
  'scuda run -- ./nvidia-smi -L' \
  'scuda run -- ./julia julia.ptx julia.png | tail -n 1'
