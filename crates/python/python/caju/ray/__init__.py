"""caju on Ray: dispatcher and workers as actors, and datasets as sources and sinks of Ray Data.

>>> import ray, caju, caju.ray                                                     # doctest: +SKIP
>>> with caju.ray.start_cluster(max_workers=8) as cluster:                         # doctest: +SKIP
...     ds = caju.read_parquet("s3://bucket/train/*.parquet").batch(256).distribute(cluster, job_name="run-1")
...     for batch in ds: ...

From a clone of the repository, `pip install '.[ray]'` installs Ray with it.
"""

from ._cluster import RayCluster, RayStatus, RayWorker, start_cluster
from ._data import CajuDatasink, CajuDatasource, load, read, write

__all__ = [
    "CajuDatasink",
    "CajuDatasource",
    "RayCluster",
    "RayStatus",
    "RayWorker",
    "load",
    "read",
    "start_cluster",
    "write",
]
