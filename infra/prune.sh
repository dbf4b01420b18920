#!/bin/sh
# Remove files of installed packages that nothing reads in the image. The Dockerfile calls it in the instruction that installs them: a later layer would hide them, and be no smaller.
set -e
packages=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
cd "$packages"
find . -depth -type d -name tests -exec rm -r {} +
rm -rf torch/test ray/jars ray/rllib                    # Ray's workers in Java, and reinforcement learning
find . -type f \( -name '*.a' -o -name '*.map' \) -delete    # static libraries; positions in the sources of Ray's dashboard
if [ -d torch/bin ]; then find torch/bin -type f ! -name torch_shm_manager -delete; fi
if ! command -v cc > /dev/null; then                    # headers are for a compiler, which only images for GPUs have
    find . -depth -type d -name include ! -path '*.dist-info/*' -exec rm -r {} +
fi
