// What a core has before a kernel runs, for kernels that g++ built.
#include <aie_api/aie.hpp>

extern "C" void core_default_rounding() {
  aie::current_rounding = aie::rounding_mode::floor;
  aie::rounded_down = 0;
}

// How many values have changed by rounding down since then.
extern "C" uint64_t core_rounded_down() { return aie::rounded_down; }
