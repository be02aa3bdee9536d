"""Kernel::clusters_at_once asks the driver once for each launch shape, and remembers the count."""

from opfacade import jit
from tests.jit.fake_driver import of_process


def test_the_driver_is_queried_once_per_launch_shape(root, cache_dir):
    driver = of_process()
    binding = driver.binding()
    before = driver.asked
    assert [binding.clusters(64, 8), binding.clusters(64, 8), binding.clusters(64, 4)] == [64, 64, 64]
    assert driver.asked == before + 2
    assert [binding.clusters(0, 8), binding.clusters(100, 8), binding.clusters(70000, 8)] == [1, 100, 65535]
    jit.forget()
