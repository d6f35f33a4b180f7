"""The sections of the report, each run in a process of its own: no two frameworks share one."""

from __future__ import annotations

import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed

from conformance import (
    deviations,
    directml,
    jax_image,
    onednn_library,
    onnx_resize,
    openvino_node,
    pytorch,
    tensorflow_ops,
)
from conformance.report import Found
from conformance.rows import Section, version

MODULES = directml, onednn_library, pytorch, onnx_resize, tensorflow_ops, jax_image, openvino_node
SECTIONS = [module.SECTION for module in MODULES]


def run_all(jobs: int) -> list[Found]:
    """Run all sections, a few at a time, and tell of each that ends."""
    pool = ProcessPoolExecutor(
        jobs, mp_context=multiprocessing.get_context("spawn"), max_tasks_per_child=1
    )
    with pool:
        # JAX compiles each case and takes longest: it begins first.
        ordered = sorted(SECTIONS, key=lambda section: section is not jax_image.SECTION)
        running = {section.title: pool.submit(run, section) for section in ordered}
        for each in as_completed(running.values()):
            sys.stderr.write(f"{each.result()}\n")
        return [running[section.title].result() for section in SECTIONS]


def run(section: Section) -> Found:
    """Compare what a section compares, where its packages are installed."""
    start = time.monotonic()
    found = {name: version(name) for name in section.packages}
    versions = {name: version for name, version in found.items() if version is not None}
    missing = [name for name in found if name not in versions]
    shown = [
        (each, deviations.printed(each) if not missing else None)
        for each in deviations.listed()
        if each.framework in section.packages
    ]
    rows = [] if missing else section.rows()
    return Found(section, versions, missing, rows, shown, time.monotonic() - start)
