// The state of one core, private to the server.
#pragma once

#include <map>

#include "launch.h"

namespace AscendC::emulator {

// Granule records who last touched 32 bytes of unified buffer.
struct Granule {
    uint32_t written = 0;
    pipe_t writer = PIPE_S;
    uint32_t read[kPipes] = {};
};

struct Event {
    bool set = false;
    Clock clock = {};
};

struct GlobalWrite {
    const uint8_t* end;
    uint32_t clock;
    pipe_t pipe;
};

// KernelFault ends the block that raised it; the report is in the core.
struct KernelFault {};

struct Core {
    Launch* launch = nullptr;
    int64_t block = 0;
    bool declared = false;
    KernelType type = KERNEL_TYPE_AIV_ONLY;
    const char* call = "";
    pipe_t pipe = PIPE_S;

    uint32_t issued[kPipes] = {};   // operations started, by pipe
    Clock seen[kPipes] = {};        // what an operation of a pipe knows to be complete

    std::vector<uint8_t> unified;
    std::vector<Granule> granules;
    uint32_t unifiedUsed = 0;
    const void* tpipe = nullptr;
    std::deque<Buffer> buffers;
    Event events[int(HardEvent::MAX)][kEventsPerPair];

    AtomicType atomic = AtomicType::kNone;
    bool scalarWrites = false;
    std::vector<Span> spans;
    std::map<const uint8_t*, GlobalWrite> written;   // own writes, by first byte, disjoint
    FaultReport fault;

    void Reset(Launch* launch, int64_t block);
    void Finish();
};

// SetCurrent binds a core to the calling thread.
void SetCurrent(Core* core);
Core* CurrentCore();

}  // namespace AscendC::emulator
