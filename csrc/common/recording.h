// The launches of one call, kept so that a call on the same tensors is made again without filling in parameters: they are a
// function of the tensors and of what the plan was bound to. Not the stream: that is asked for anew.
#pragma once
#include <cuda.h>
#include <stdlib.h>
#include <string.h>

namespace opfacade {

class Recording {
 public:
  Recording() = default;
  Recording(const Recording&) = delete;
  ~Recording() {
    for (int i = 0; i < count_; ++i) free(kept_[i].params);
  }

  // Of this thread; null where nobody records.
  static Recording*& current() {
    static thread_local Recording* recording = nullptr;
    return recording;
  }

  // function: of the context that the launch was made in.
  void note(const CUlaunchConfig& config, CUfunction function, const void* params, size_t bytes) {
    if (count_ == kMost) overflowed_ = true;
    if (overflowed_) return;
    Kept& kept = kept_[count_++];
    kept.config = config;
    kept.function = function;
    memcpy(kept.attributes, config.attrs, config.numAttrs * sizeof(CUlaunchAttribute));
    kept.params = aligned_alloc(kLine, (bytes + kLine - 1) / kLine * kLine);
    memcpy(kept.params, params, bytes);
  }

  // A call that launched nothing, or too much, is made as the first time.
  bool whole() const { return count_ > 0 && !overflowed_; }

  template <class LaunchKernel>
  CUresult play(LaunchKernel launch, CUstream stream) const {
    for (int i = 0; i < count_; ++i) {
      CUlaunchConfig config = kept_[i].config;
      config.attrs = const_cast<CUlaunchAttribute*>(kept_[i].attributes);
      config.hStream = stream;
      void* params[] = {kept_[i].params};
      const CUresult result = launch(&config, kept_[i].function, params, nullptr);
      if (result != CUDA_SUCCESS) return result;
    }
    return CUDA_SUCCESS;
  }

 private:
  static constexpr int kMost = 4, kMostAttributes = 2;
  static constexpr size_t kLine = 64;
  struct Kept {
    CUlaunchConfig config;
    CUlaunchAttribute attributes[kMostAttributes];
    CUfunction function;
    void* params;
  };
  Kept kept_[kMost];
  int count_ = 0;
  bool overflowed_ = false;
};

// Records for a block, or not if null.
class Recorded {
 public:
  explicit Recorded(Recording* recording) { Recording::current() = recording; }
  ~Recorded() { Recording::current() = nullptr; }
  Recorded(const Recorded&) = delete;
};

}  // namespace opfacade
