// Reads the tensors of a bundle from the Python object itself: from its slots, and by DLPack's function table, which borrows
// tensors for one call. Passing ten tensors through Python costs a microsecond more.
//
// No symbol of Python is linked or included: opfacade/backends/cuda/host/quick.py passes the addresses of its functions and the offsets
// of an object's type and slots, after a trial of each. Callers hold the GIL.
#pragma once
#include "csrc/host/call_signature.h"

namespace opfacade {

struct PyObjectHead {
  int64_t references;
  const void* type;
};

// Addresses in the interpreter, in the order of quick.py.
struct Interpreter {
  static constexpr int kNumbers = 10;

  explicit Interpreter(ArgReader& from) {
    read(from, vectorcall), read(from, clear_error), read(from, decref), read(from, save_thread), read(from, restore_thread);
    read(from, py_true), read(from, py_none), read(from, tensor), read(from, parameter), read(from, exchange);
    if (exchange->header.version.major != DLPACK_MAJOR_VERSION || exchange->dltensor_from_py_object_no_sync == nullptr)
      throw FfiError("ValueError") << "replay: torch's DLPack exchange is of another version. [OPF-C031]";
  }

  // Whether a Python function of these objects returns True.
  bool guard_passes(void* function, void* const* objects, size_t count) const {
    void* const answer = vectorcall(function, objects, count, nullptr);
    if (answer == nullptr) return clear_error(), false;
    const bool passed = answer == py_true;
    decref(answer);
    return passed;
  }

  // False for anything but a plain tensor that DLPack can export.
  bool borrow(void* object, DLTensor& out) const {
    const void* type = static_cast<const PyObjectHead*>(object)->type;
    if (type != tensor && type != parameter) return false;
    if (exchange->dltensor_from_py_object_no_sync(object, &out) == 0) return true;
    return clear_error(), false;
  }

  void* (*vectorcall)(void* function, void* const* objects, size_t count, void* names);
  void (*clear_error)();
  void (*decref)(void* object);
  void* (*save_thread)();  // releases the GIL
  void (*restore_thread)(void* state);
  const void *py_true, *py_none, *tensor, *parameter;
  const DLPackExchangeAPI* exchange;

 private:
  template <class T>
  static void read(ArgReader& from, T*& out) {
    out = reinterpret_cast<T*>(ReadArg<int64_t>(from).value);
  }
};

// Releases the GIL for a block: a launch waits while the queue of its stream is full, and other threads run Python meanwhile.
class GilRelease {
 public:
  explicit GilRelease(const Interpreter& python) : python_(python), state_(python.save_thread()) {}
  ~GilRelease() { python_.restore_thread(state_); }
  GilRelease(const GilRelease&) = delete;

 private:
  const Interpreter& python_;
  void* state_;
};

// Where a bundle type keeps its fields, tensors first. guarded: one bit per tensor, set if guards check it. Guards refuse
// gradients and views that change values (conj, neg); tensors of integers have neither.
struct BundleLayout {
  static constexpr int kNumbers = 4;  // followed by one offset per field

  // count: how many arguments follow.
  BundleLayout(ArgReader& from, int count) {
    type = reinterpret_cast<const void*>(ReadArg<int64_t>(from).value);
    present = static_cast<int>(ReadArg<int64_t>(from).value), fields = static_cast<int>(ReadArg<int64_t>(from).value);
    guarded = static_cast<uint64_t>(ReadArg<int64_t>(from).value);
    if (present < 1 || present > fields || fields > kMaxFields || fields > count)
      throw FfiError("ValueError") << "replay: " << present << " of " << fields << " fields are more than it can hold. [OPF-C031]";
    for (int i = 0; i < fields; ++i) offset[i] = ReadArg<int64_t>(from).value;
  }
  void* slot(const void* bundle, int field) const {
    return *reinterpret_cast<void* const*>(static_cast<const char*>(bundle) + offset[field]);
  }

  const void* type;
  int present, fields;
  uint64_t guarded;
  int64_t offset[kMaxFields];
};

// The tensors of one call: those of the fields, then the workspace if there is one.
struct BorrowedTensors {
  // False for a bundle that only the slower paths can check.
  bool read(const Interpreter& python, const BundleLayout& layout, const void* bundle, void* workspace) {
    if (static_cast<const PyObjectHead*>(bundle)->type != layout.type) return false;
    guarded = 0;
    for (int i = 0; i < layout.fields; ++i) {
      void* const object = layout.slot(bundle, i);
      if (i >= layout.present) {
        if (object != python.py_none) return false;
      } else if (object == nullptr || !python.borrow(object, tensor[i])) {
        return false;
      } else if (layout.guarded >> i & 1) {
        objects[guarded++] = object;
      }
    }
    count = layout.present;
    if (workspace == python.py_none) return true;
    return static_cast<const PyObjectHead*>(workspace)->type == python.tensor && python.borrow(workspace, tensor[count++]);
  }

  int count, guarded;
  DLTensor tensor[kMaxFields + 1];
  void* objects[kMaxFields];  // Python objects of guarded tensors
};

// Shapes and strides of borrowed tensors, copied.
struct TensorForms {
  // False if one has more dimensions than any operand.
  bool hold(BorrowedTensors& borrowed) {
    for (int i = 0; i < borrowed.count; ++i) {
      DLTensor& tensor = borrowed.tensor[i];
      if (tensor.ndim > kMaxRank) return false;
      for (int axis = 0; axis < tensor.ndim; ++axis) shapes[i][axis] = tensor.shape[axis], strides[i][axis] = tensor.strides[axis];
      tensor.shape = shapes[i], tensor.strides = strides[i];
    }
    return true;
  }

  int64_t shapes[kMaxFields + 1][kMaxRank], strides[kMaxFields + 1][kMaxRank];
};

}  // namespace opfacade
