// Launches of emitted kernels inside the host program's process.
#pragma once

#include "acl/acl.h"
#include "launch.h"

uint32_t RunKernel(const AscendC::emulator::Kernel& kernel, uint32_t blocks, std::vector<uint64_t> arguments);

template <class T>
uint64_t Word(T value) {
    uint64_t word = 0;
    std::memcpy(&word, &value, sizeof value);
    return word;
}

#ifndef ACLRT_LAUNCH_KERNEL
#define ACLRT_LAUNCH_KERNEL(kernel) aclrtlaunch_##kernel
#endif
