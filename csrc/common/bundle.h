// The tensors of a bundle, read from the Python object itself: by its slots, and by the table of functions with which DLPack
// lends tensors for the time of a call. Handing each tensor over by name and owning it takes a microsecond for ten of them.
//
// Nothing of Python is linked or included. opfacade/backends/cuda/quick.py tells where its functions are and where objects keep
// their type and slots, which it tries out first. All of it is called by a thread that holds the GIL.
#pragma once
#include "csrc/common/contract.h"

namespace opfacade {

struct PyObjectHead {
  int64_t references;
  const void* type;
};

// What quick.py says of the interpreter, in its order.
struct Interpreter {
  static constexpr int kNumbers = 10;

  explicit Interpreter(Taken& from) {
    take(from, call), take(from, clear_error), take(from, drop), take(from, leave), take(from, enter);
    take(from, yes), take(from, none), take(from, tensor), take(from, parameter), take(from, exchange);
    if (exchange->header.version.major != DLPACK_MAJOR_VERSION || exchange->dltensor_from_py_object_no_sync == nullptr)
      throw Failure("ValueError") << "quick: tensors are not lent. [OPF-C031]";
  }

  // Whether a Python function says True of these objects.
  bool affirms(void* function, void* const* objects, size_t count) const {
    void* const answer = call(function, objects, count, nullptr);
    if (answer == nullptr) return clear_error(), false;
    const bool affirmed = answer == yes;
    drop(answer);
    return affirmed;
  }

  // False for what is no plain tensor, or cannot be lent.
  bool lend(void* object, DLTensor& out) const {
    const void* type = static_cast<const PyObjectHead*>(object)->type;
    if (type != tensor && type != parameter) return false;
    if (exchange->dltensor_from_py_object_no_sync(object, &out) == 0) return true;
    return clear_error(), false;
  }

  void* (*call)(void* function, void* const* objects, size_t count, void* names);
  void (*clear_error)();
  void (*drop)(void* object);
  void* (*leave)();         // lets go of the GIL
  void (*enter)(void* left);
  const void *yes, *none, *tensor, *parameter;
  const DLPackExchangeAPI* exchange;

 private:
  template <class T>
  static void take(Taken& from, T*& out) {
    out = reinterpret_cast<T*>(Value<int64_t>(from).value);
  }
};

// Another thread may run Python meanwhile: a launch waits where the queue of a stream is full.
class WithoutGil {
 public:
  explicit WithoutGil(const Interpreter& python) : python_(python), left_(python.leave()) {}
  ~WithoutGil() { python_.enter(left_); }
  WithoutGil(const WithoutGil&) = delete;

 private:
  const Interpreter& python_;
  void* left_;
};

// Where a type of bundles keeps its fields: those that hold tensors first. guarded: a bit for each tensor that guards see; they
// see what may have a gradient or be a view that changes values, which no tensor of integers is.
struct BundleLayout {
  static constexpr int kNumbers = 4;  // and one a field

  // count: of arguments behind it.
  BundleLayout(Taken& from, int count) {
    type = reinterpret_cast<const void*>(Value<int64_t>(from).value);
    present = static_cast<int>(Value<int64_t>(from).value), fields = static_cast<int>(Value<int64_t>(from).value);
    guarded = static_cast<uint64_t>(Value<int64_t>(from).value);
    if (present < 1 || present > fields || fields > kMaxFields || fields > count)
      throw Failure("ValueError") << "quick: " << present << " of " << fields << " fields are beyond what it can hold. [OPF-C031]";
    for (int i = 0; i < fields; ++i) offset[i] = Value<int64_t>(from).value;
  }
  void* slot(const void* bundle, int field) const {
    return *reinterpret_cast<void* const*>(static_cast<const char*>(bundle) + offset[field]);
  }

  const void* type;
  int present, fields;
  uint64_t guarded;
  int64_t offset[kMaxFields];
};

// Lent for one call: the tensors of the fields, and the workspace behind them if there is one.
struct LentTensors {
  // False for what the short way must look at.
  bool read(const Interpreter& python, const BundleLayout& layout, const void* bundle, void* workspace) {
    if (static_cast<const PyObjectHead*>(bundle)->type != layout.type) return false;
    guarded = 0;
    for (int i = 0; i < layout.fields; ++i) {
      void* const object = layout.slot(bundle, i);
      if (i >= layout.present) {
        if (object != python.none) return false;
      } else if (object == nullptr || !python.lend(object, tensor[i])) {
        return false;
      } else if (layout.guarded >> i & 1) {
        objects[guarded++] = object;
      }
    }
    count = layout.present;
    if (workspace == python.none) return true;
    return static_cast<const PyObjectHead*>(workspace)->type == python.tensor && python.lend(workspace, tensor[count++]);
  }

  int count, guarded;
  DLTensor tensor[kMaxFields + 1];
  void* objects[kMaxFields];  // that guards see
};

}  // namespace opfacade
