"""Kernel::clusters_at_once: a device is asked for the clusters of a shape, and not again for the same one."""

from opfacade import jit
from tests.jit.fake_driver import of_process


def test_a_shape_is_asked_for_once(root, cache_dir):
    driver = of_process()
    binding = driver.binding()
    before = driver.asked
    assert [binding.clusters(64, 8), binding.clusters(64, 8), binding.clusters(64, 4)] == [64, 64, 64]
    assert driver.asked == before + 2
    assert [binding.clusters(0, 8), binding.clusters(100, 8), binding.clusters(70000, 8)] == [1, 100, 65535]
    jit.forget()
