#!/usr/bin/env bash
# Runs ffmpeg's CUDA filters on pictures that it makes itself. Their sums are those of a first run, in which what was
# scaled and deinterlaced lay 38, 49 and 35 dB (PSNR) from what the CPU's filters make of it, and thumbnail_cuda's
# picture was the same.
#
#   ffmpeg.sh RUN     RUN: fetch.sh's script, which starts ffmpeg
set -uo pipefail
rc=0
filter() { # SUM NAME ARGUMENT…: a filter, and whatever ffmpeg needs for it
  local sum
  sum=$("$run" ffmpeg -hide_banner -loglevel error -nostdin -init_hw_device cuda=gpu -filter_hw_device gpu \
    -f lavfi -i testsrc2=size=256x144:rate=25:duration=0.2 "${@:3}" -f rawvideo - | sha256sum | cut -c 1-16)
  if [ "$sum" = "$1" ]; then
    echo "$2 is right"
  else
    echo "$2: $sum, not $1"
    rc=1
  fi
}
run=$1
planar=format=yuv420p,hwupload
down=hwdownload,format=yuv420p
filter 4bf7e2317a35084c scale_cuda -vf "$planar,scale_cuda=128:72,$down"
filter 4f0839bb6f22377f yadif_cuda -vf "$planar,yadif_cuda,$down"
filter 2776aeb2e8be500d bwdif_cuda -vf "$planar,bwdif_cuda,$down"
filter 7144a27dd671f1d3 bilateral_cuda -vf "$planar,bilateral_cuda=window_size=3:sigmaS=3:sigmaR=50,$down"
filter f751c0a87645b7fd thumbnail_cuda -vf "format=nv12,hwupload,thumbnail_cuda=3,hwdownload,format=nv12"
filter b20b9bb121261fd3 chromakey_cuda -vf "$planar,chromakey_cuda=green,hwdownload,format=yuva420p"
filter 7cbc0e01ac284bb5 colorspace_cuda -vf "$planar,colorspace_cuda=range=pc,$down"
filter 503a7e61ec173e92 overlay_cuda -f lavfi -i color=red:size=64x36:rate=25:duration=0.2 \
  -filter_complex "[0]$planar[a];[1]$planar[b];[a][b]overlay_cuda=20:10,$down"
[ $rc != 0 ] || echo "all eight filters give the pictures that they should"
exit $rc
