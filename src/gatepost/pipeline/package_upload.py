"""Sends the gatepost package to the workers of a cluster.

Gatepost itself is pure Python, so a zip file suffices. Workers must already have pyarrow, numpy and
msgspec, which hold compiled code, and the same minor version of Python as the driver.
"""

import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import gatepost

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A fixed time stamp, so that the same package always makes the same file.
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)


def send_package(spark: "SparkSession") -> None:
    """Let executors import gatepost.

    Executors fetch the file when they start, so it stays in Spark's own folder until Spark stops.
    A Spark Connect server keeps a copy of its own.
    """
    if is_connect(spark):
        with tempfile.TemporaryDirectory(prefix="gatepost-") as folder:
            spark.addArtifacts(str(zip_package(Path(folder) / "gatepost.zip")), pyfile=True)
        return
    context = spark.sparkContext
    target = Path(context._temp_dir) / "gatepost.zip"
    if not target.exists():
        context.addPyFile(str(zip_package(target)))


_JOB_NAME = "gatepost_job.py"
_JOB_PROGRAM = '''"""A command of `gatepost pipeline` as a program for spark-submit."""

import sys

from gatepost.cli import main

sys.argv[1:1] = ["pipeline"]
main()
'''


def write_package(folder: Path) -> list[Path]:
    """Write the files for `spark-submit`: the package, and the program that runs a command."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / _JOB_NAME
    program.write_text(_JOB_PROGRAM)
    return [zip_package(folder / "gatepost.zip"), program]


def is_connect(spark: "SparkSession") -> bool:
    """Whether the session is at a Spark Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def zip_package(target: Path) -> Path:
    """Write the installed package to a zip file that Python can import from."""
    root = Path(gatepost.__file__).parent
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        definitions = root.glob("pipeline/sql/*.sql")
        for source in sorted([*root.rglob("*.py"), *definitions]):
            info = zipfile.ZipInfo(str(source.relative_to(root.parent)), _ZIP_EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, source.read_bytes())
    return target
