"""Names of container images, and environment variables that limit the threads of programs."""

from collections.abc import Iterable, Mapping

CPU_CAP_ENV_VARS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMEXPR_MAX_THREADS",
    "NUMBA_NUM_THREADS",
    "POLARS_MAX_THREADS",
    "LOKY_MAX_CPU_COUNT",
    "PYTHON_CPU_COUNT",
    "JULIA_NUM_THREADS",
    "GOMAXPROCS",
    "CARGO_BUILD_JOBS",
    "RAYON_NUM_THREADS",
    "TOKIO_WORKER_THREADS",
    "UV_THREADPOOL_SIZE",
    "CMAKE_BUILD_PARALLEL_LEVEL",
    "MAX_JOBS",
)
"""Variables with which libraries and build tools take their number of threads."""


def cpu_cap_env(cpu: float | None) -> dict[str, str]:
    """Return the variables that limit programs to the processors of a sandbox; empty without a limit.

    Programs count the processors of the machine, not those that a container may use, and start too many threads.
    """
    return {} if cpu is None else dict.fromkeys(CPU_CAP_ENV_VARS, str(max(1, int(cpu))))


def rewrite_image(image: str, rewrites: Iterable[Mapping[str, str]] | None) -> str:
    """Replace the first matching prefix of `image`; each rewrite is `{from: prefix, to: prefix}`.

    Sites use it to pull images from a mirror without changing the configs that name them.
    """
    for rewrite in rewrites or ():
        if image.startswith(rewrite["from"]):
            return rewrite["to"] + image.removeprefix(rewrite["from"])
    return image
