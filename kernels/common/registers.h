// The number of registers per thread that the warpgroups of a CTA can have.
#pragma once

namespace opfacade {

// True if the warpgroups can have `sum` registers per thread together. A launch gives each thread an equal share, a multiple of
// 8, of the 65536 registers of an SM; setmaxnreg.inc waits forever if it requests more than the other warpgroups release.
constexpr bool fit_registers(int sum, int warpgroups) { return sum <= 65536 / (128 * warpgroups) / 8 * 8 * warpgroups; }

}  // namespace opfacade
