// The Ascend C kernel API on a CPU: the names an emitted kernel uses, executed
// eagerly by one thread per block, each call checked as the chip would need it.
//
// Written from published facts about the interface; it holds no vendor code.
#pragma once

#include "emulator/types.h"
#include "emulator/core.h"
#include "emulator/tensor.h"
#include "emulator/pipe.h"
#include "emulator/move.h"
#include "emulator/vector.h"
#include "emulator/reduce.h"
