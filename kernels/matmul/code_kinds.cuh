// Kinds of codes of a weight, and of their zero points: none, subtracted from codes, or added to scaled codes.
#pragma once

namespace opfacade {

enum class Code { kSigned, kUnsigned, kE2M1, kE4M3 };
enum class ZeroPoint { kNone, kSubtracted, kAdded };

}  // namespace opfacade
