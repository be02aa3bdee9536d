"""The library cuBLASLt itself: which package torch needs, what is loaded, and what a failed call says."""

import pytest

from opfacade import Plan, Preference, Target
from opfacade.backends.library import cublaslt_library as cublaslt
from opfacade.errors import LibraryError, UnsupportedError
from opfacade.plans.matmul import MatmulDescriptor
from tests.families.matmul import cublaslt_here


@pytest.fixture
def library():
    with cublaslt_here.here():
        yield


def test_a_library_that_is_not_installed_is_a_reason():
    with cublaslt_here.installed(None), pytest.raises(UnsupportedError, match=r"not installed.*OPF-S025"):
        Plan.select(
            MatmulDescriptor(total_num_rows=7, n=24, k=40, dtype="f32"), Preference(backend="library"), Target.parse("sm_90a")
        )


def test_the_version_is_that_of_the_package_that_torch_needs(monkeypatch):
    here = {"nvidia-cublas": "13.4.0.1", "nvidia-cublas-cu12": "12.8.4.1"}
    monkeypatch.setattr(cublaslt, "_version", here.get)
    for needs, want in (({"nvidia-cublas-cu12"}, "12.8.4.1"), ({"nvidia-cublas"}, "13.4.0.1"), (set(), "13.4.0.1")):
        monkeypatch.setattr(cublaslt, "_needs_of_torch", lambda needs=needs: needs)
        assert cublaslt.installed.__wrapped__() == want
    monkeypatch.setattr(cublaslt, "_version", lambda name: None)
    assert cublaslt.installed.__wrapped__() is None


def test_requirements_of_torch_are_read_by_name(monkeypatch):
    lines = ["nvidia-cublas-cu12==12.8.4.1; platform_system == 'Linux'", "sympy>=1.13", "typing-extensions"]
    monkeypatch.setattr(cublaslt, "requires", lambda name: lines)
    assert cublaslt._needs_of_torch() == {"nvidia-cublas-cu12", "sympy", "typing-extensions"}


def test_a_library_that_torch_has_not_loaded_is_an_error():
    with pytest.raises(LibraryError, match=r"torch has not loaded libcublasLt\.so\.999.*OPF-L001") as caught:
        cublaslt.load.__wrapped__("999.1")
    assert (caught.value.library, caught.value.status) == ("cublaslt", None)


def test_what_torch_has_loaded_is_used_if_its_version_is_the_one_wanted(monkeypatch):
    monkeypatch.setattr(cublaslt, "_opened", lambda wanted: cublaslt_here.opened())
    assert cublaslt.load.__wrapped__(cublaslt_here.VERSION).functions is cublaslt_here.opened()
    with pytest.raises(LibraryError, match="OPF-L002"):
        cublaslt.load.__wrapped__("13.2.0.0")


@pytest.mark.parametrize(("number", "package"), [(130100, "13.1.0.3"), (120804, "12.8.4.1"), (130002, "13.0.2")])
def test_the_number_of_the_loaded_library_is_that_of_its_package(number, package):
    cublaslt._require_version(number, package)
    with pytest.raises(LibraryError, match="OPF-L002"):
        cublaslt._require_version(number + 1, package)


def test_a_call_that_fails_names_the_function_and_the_status(library):
    loaded = cublaslt.load("any")
    description = loaded.made("cublasLtMatmulDescCreate", 68, 0)
    found = r"cublasLtMatmulDescSetAttribute failed: CUBLAS_STATUS_INVALID_VALUE.*OPF-L004"
    with pytest.raises(LibraryError, match=found) as caught:
        loaded.set("MatmulDesc", description, 99, cublaslt.ctypes.c_int32(1))
    assert caught.value.status == 7
    loaded.call("cublasLtMatmulDescDestroy", description)
