"""Freed memory that stays."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
import torch
from melm.memory import keep_freed_memory

if {keep}:
    keep_freed_memory()
for round in range(30):
    if round == 20:  # the heap has found its place
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(12, 1024, 1024)  # 48 MB: 12,288 pages
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages_asked_for(keep, **environment):
    program = [sys.executable, "-c", PROGRAM.format(keep=keep)]
    return int(subprocess.run(program, capture_output=True, text=True, check=True, env=environment).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than GNU's")
def test_freed_memory_is_taken_again_without_asking_the_system():
    given_back = pages_asked_for(False)
    if given_back < 2000:  # with pages of 2 MB there are few
        pytest.skip("the system hands out large pages")
    assert pages_asked_for(True) < given_back / 10


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than GNU's")
def test_what_the_user_says_of_memory_stands():
    asked = {"MALLOC_MMAP_THRESHOLD_": "131072"}
    given_back = pages_asked_for(False, **asked)
    assert pages_asked_for(True, **asked) > given_back / 2
