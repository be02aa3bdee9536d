// Codes of a weight, and their zero point: none, subtracted from codes, or added to the scaled code.
#pragma once

namespace opfacade {

enum class Code { kSigned, kUnsigned, kE2M1, kE4M3 };
enum class ZeroPoint { kNone, kSubtracted, kAdded };

}  // namespace opfacade
