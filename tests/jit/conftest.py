"""A source root with test templates and the real headers, and a private cache for each test."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from opfacade import env, jit
from opfacade.backends.cuda.host import direct
from opfacade.jit import JitSpec, cache
from opfacade.jit.cache import process_cache as private
from tests.jit.fake_driver import of_process
from tests.jit.fakes import Toolkit, make_toolkit

REPO = Path(__file__).resolve().parents[2]
SCALE = JitSpec.of("scale", "testing/scale", "sm_90a", threads=256)
HOST_FUNCTIONS = ("signature", "replay", "register_extents", "cached_launches", "cached_bytes")
TINY = JitSpec.of("tiny", "testing/tiny", "sm_80", value=42)


REGISTERED = set()  # addresses whose extent some test has registered; a smaller storage may reuse a freed address


@pytest.fixture(scope="session", autouse=True)
def registered():
    def extents(tensors):
        REGISTERED.update(tensor.data_ptr() for tensor in tensors)
        return original(tensors)

    original = direct._extents
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(direct, "_extents", extents)
        yield


def make_root(place):
    shutil.copytree(REPO / "tests/jit/templates", place)
    for folder in ("common", "host"):
        shutil.copytree(REPO / "csrc" / folder, place / "csrc" / folder)
    for folder in ("ptx", "common"):
        shutil.copytree(REPO / "kernels" / folder, place / "kernels" / folder)
    return place


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A source root that a test may edit: csrc/common and csrc/host of the repository, and tests/jit/templates."""
    place = make_root(tmp_path / "root")
    monkeypatch.setenv("OPFACADE_SOURCE_ROOT", str(place))
    jit.forget()
    yield place
    jit.forget()


@pytest.fixture
def cache_dir(tmp_path, monkeypatch, scale_cache):
    """An empty cache that contains the digests of the compilers, so that not every test has to hash them."""
    place = tmp_path / "cache"
    cache.make_private(place / "v1")
    shutil.copy(scale_cache / "v1/toolchain.json", place / "v1")
    monkeypatch.setenv("OPFACADE_CACHE_DIR", str(place))
    return place


@pytest.fixture
def scale(root, cache_dir):
    """A spec that is really rendered, built and loaded."""
    return SCALE


@pytest.fixture
def tiny(root, cache_dir):
    """A spec whose binding is C, so that a build takes under a second."""
    return TINY


@pytest.fixture(scope="session")
def scale_cache(tmp_path_factory):
    """A cache in which `scale` and `tiny` are built, once for all tests: a real binding takes seconds to compile."""
    if env.jit_disabled():
        pytest.skip("compiles kernels of its own, and OPFACADE_DISABLE_JIT is set")
    place = tmp_path_factory.mktemp("scale")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPFACADE_SOURCE_ROOT", str(make_root(place / "root")))
        patch.setenv("OPFACADE_CACHE_DIR", str(place / "cache"))
        jit.build(SCALE)
        jit.build(TINY)
    return place / "cache"


@pytest.fixture(scope="session")
def driver():
    """The fake driver of this process, which libraries find by its name."""
    return of_process()


@pytest.fixture(scope="session")
def beside_host(scale_cache):
    """Combines a kernel library and the host library in one object: `run` and the named functions of the kernel library, and
    all functions of the host library."""

    def both(load, *names):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OPFACADE_SOURCE_ROOT", str(scale_cache.parent / "root"))
            patch.setenv("OPFACADE_CACHE_DIR", str(scale_cache))
            kernel, host = load(), jit.load(jit.HOST)
        functions = {name: getattr(kernel, name) for name in ("run", *names)}
        return SimpleNamespace(**functions, **{name: getattr(host, name) for name in HOST_FUNCTIONS})

    return both


@pytest.fixture
def built(scale, scale_cache, cache_dir):
    """The spec `scale`, already built in this test's cache."""
    shutil.copytree(scale_cache, cache_dir, dirs_exist_ok=True)
    return scale


@pytest.fixture
def built_tiny(tiny, built):
    """The spec `tiny`, already built in this test's cache."""
    return tiny


@pytest.fixture(scope="session")
def _toolkit_home(tmp_path_factory):
    home = tmp_path_factory.mktemp("toolkit") / "kit"
    make_toolkit(home)
    return home


@pytest.fixture
def toolkit(_toolkit_home, root, tmp_path, monkeypatch):
    """A selected toolkit with a fake nvcc and an empty cache, for tests of the cache alone."""
    shutil.copytree(_toolkit_home, tmp_path / "kit")
    monkeypatch.setenv("OPFACADE_NVCC", str(tmp_path / "kit/bin/nvcc"))
    monkeypatch.setenv("OPFACADE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(private, "_store", None)
    return Toolkit(tmp_path / "kit")


@pytest.fixture(scope="session")
def _tiny_cache(_toolkit_home, tmp_path_factory):
    """A cache in which a toolkit with a fake nvcc has built `tiny`."""
    place = tmp_path_factory.mktemp("tiny")
    shutil.copytree(_toolkit_home, place / "kit")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPFACADE_SOURCE_ROOT", str(make_root(place / "root")))
        patch.setenv("OPFACADE_NVCC", str(place / "kit/bin/nvcc"))
        patch.setenv("OPFACADE_CACHE_DIR", str(place / "cache"))
        patch.setattr(private, "_store", None)
        jit.forget()
        jit.build(TINY)
    jit.forget()
    return place / "cache"


@pytest.fixture
def tiny_built(_tiny_cache, toolkit):
    """`tiny` as the fake toolkit builds it, in this test's cache; returns its library."""
    shutil.copytree(_tiny_cache, toolkit_cache(toolkit), symlinks=True)
    assert jit.is_built(TINY)
    return jit.build(TINY)


def toolkit_cache(toolkit):
    return toolkit.home.parent / "cache"


@pytest.fixture(scope="session")
def module(beside_host):
    return beside_host(lambda: jit.load(JitSpec.of("contract", "testing/contract", "sm_90a")), "called", "arguments")


@pytest.fixture(scope="session")
def stub(driver, beside_host):
    """The binding of the fake driver in one library with the real host code."""
    return beside_host(driver.binding, "called")


@pytest.fixture
def way(driver, stub):
    from tests.jit.quick_way import ReplayPath  # pytest has already loaded test_contract, which it needs

    return lambda descriptor, sound, **options: ReplayPath(driver, stub, descriptor, sound, **options)
