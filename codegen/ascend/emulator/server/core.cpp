#include "core.h"

#include <cstdarg>
#include <cstdio>

namespace AscendC::emulator {

namespace {

thread_local Core* current = nullptr;

const char* PipeName(pipe_t pipe) {
    static const char* const names[] = {"S", "V", "M", "MTE1", "MTE2", "MTE3", "FIX", "ALL"};
    return names[pipe];
}

struct EventPipes {
    const char* name;
    pipe_t from, to;
};

const EventPipes& PipesOf(HardEvent event) {
    static const EventPipes table[] = {
        {"MTE2_V", PIPE_MTE2, PIPE_V},    {"V_MTE2", PIPE_V, PIPE_MTE2},       {"V_MTE3", PIPE_V, PIPE_MTE3},
        {"MTE3_V", PIPE_MTE3, PIPE_V},    {"V_S", PIPE_V, PIPE_S},             {"S_V", PIPE_S, PIPE_V},
        {"MTE2_S", PIPE_MTE2, PIPE_S},    {"S_MTE2", PIPE_S, PIPE_MTE2},       {"MTE3_S", PIPE_MTE3, PIPE_S},
        {"S_MTE3", PIPE_S, PIPE_MTE3},    {"MTE2_MTE3", PIPE_MTE2, PIPE_MTE3}, {"MTE3_MTE2", PIPE_MTE3, PIPE_MTE2},
        {"V_V", PIPE_V, PIPE_V},
    };
    return table[int(event)];
}

const char* PositionName(TPosition position) {
    switch (position) {
    case TPosition::VECIN: return "VECIN";
    case TPosition::VECOUT: return "VECOUT";
    case TPosition::VECCALC: return "VECCALC";
    default: return "a cube position";
    }
}

// Snapshot is what is complete once the operations of a pipe so far are.
Clock Snapshot(const Core& core, pipe_t pipe) {
    Clock clock = core.seen[pipe];
    clock.at[pipe] = core.issued[pipe];
    return clock;
}

void Join(Clock& into, const Clock& from) {
    for (int pipe = 0; pipe < kPipes; pipe++) {
        if (from.at[pipe] > into.at[pipe]) into.at[pipe] = from.at[pipe];
    }
}

// Complete tells whether operation number clock of pipe has ended for the
// current one. Pipes other than V run their own operations in order; V needs a
// barrier between dependent ones.
bool Complete(const Core& core, pipe_t pipe, uint32_t clock) {
    if (clock == 0) return true;
    if (pipe == core.pipe && (pipe != PIPE_V || clock == core.issued[PIPE_V])) return true;
    return core.seen[core.pipe].at[pipe] >= clock;
}

[[noreturn]] void Unordered(const Core& core, const char* action, const char* before, pipe_t other, const char* where, uint64_t at) {
    if (other == core.pipe) {
        Fault("it %s %s at byte %llu that an earlier %s operation %s: PipeBarrier<PIPE_%s> is missing between them", action, where,
              (unsigned long long)at, PipeName(other), before, PipeName(other));
    }
    Fault("it %s %s at byte %llu on pipe %s, and nothing makes it wait for pipe %s, which %s them", action, where,
          (unsigned long long)at, PipeName(core.pipe), PipeName(other), before);
}

uint8_t* Locate(const View& view, uint64_t bytes) {
    if (!view.buffer) Fault("the local tensor was never allocated");
    if (view.buffer->generation != view.generation) Fault("the local tensor was freed before this use");
    if (bytes > view.bytes) Fault("%llu bytes are beyond the local tensor of %u bytes", (unsigned long long)bytes, view.bytes);
    return &current->unified[view.buffer->offset + view.offset];
}

bool Poisoned(const uint8_t* at, uint32_t elementBytes) {
    if (elementBytes == 4) {
        uint32_t word;
        std::memcpy(&word, at, 4);
        return word == kPoison;
    }
    uint16_t word;
    std::memcpy(&word, at, 2);
    return word == uint16_t(kPoison);
}

// FirstPoisoned returns the byte position of the first uninitialised element, or bytes.
uint64_t FirstPoisoned(const uint8_t* data, uint64_t bytes, uint32_t elementBytes) {
    if (elementBytes != 2 && elementBytes != 4) return bytes;
    for (uint64_t at = 0; at + elementBytes <= bytes; at += elementBytes) {
        if (Poisoned(data + at, elementBytes)) return at;
    }
    return bytes;
}

void NoteRead(Core& core, const View& view, uint64_t bytes) {
    const uint64_t first = view.buffer->offset + view.offset;
    for (uint64_t block = first / kBlockBytes; block * kBlockBytes < first + bytes; block++) {
        Granule& granule = core.granules[block];
        if (!Complete(core, granule.writer, granule.written)) {
            Unordered(core, "reads", "writes", granule.writer, "the unified buffer", block * kBlockBytes);
        }
        granule.read[core.pipe] = core.issued[core.pipe];
    }
}

void FillPoison(Core& core, const Buffer& buffer) {
    for (uint32_t at = 0; at < buffer.bytes; at += 4) std::memcpy(&core.unified[buffer.offset + at], &kPoison, 4);
}

void RequireEvent(HardEvent event, int32_t id) {
    if (event >= HardEvent::MAX) Fault("an unknown event");
    if (id < 0 || id >= kEventsPerPair) Fault("event id %d of %s is not in 0..%d", id, PipesOf(event).name, kEventsPerPair - 1);
}

Buffer* Claim(const void* owner, TPosition position, BufferState state, uint32_t bytes) {
    Core& core = *current;
    if (!core.tpipe) Fault("there is no TPipe");
    if (bytes == 0) Fault("a buffer of 0 bytes");
    const uint64_t rounded = (uint64_t(bytes) + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
    if (core.unifiedUsed + rounded > kUnifiedBytes) {
        Fault("the unified buffer overflows: %u bytes are in use, %llu more are asked for, %u exist", core.unifiedUsed,
              (unsigned long long)rounded, kUnifiedBytes);
    }
    if (core.buffers.size() >= kMaxBuffers) Fault("more than %u buffers", kMaxBuffers);
    core.buffers.push_back(Buffer{core.unifiedUsed, uint32_t(rounded), position, owner, state, 0, {}, {}});
    Buffer* buffer = &core.buffers.back();
    core.unifiedUsed += uint32_t(rounded);
    FillPoison(core, *buffer);
    for (uint32_t block = buffer->offset / kBlockBytes; block < core.unifiedUsed / kBlockBytes; block++) core.granules[block] = Granule{};
    return buffer;
}

void NoteSpan(Core& core, const uint8_t* begin, uint64_t bytes, bool write, bool atomic) {
    if (core.launch->blocks == 1) return;
    if (!core.spans.empty()) {
        Span& last = core.spans.back();
        if (last.end == begin && last.write == write && last.atomic == atomic && last.call == core.call) {
            last.end += bytes;
            return;
        }
    }
    core.spans.push_back(Span{begin, begin + bytes, core.block, write, atomic, core.call});
}

// RequireOwnWritesDone refuses a range that this block wrote on a pipe not waited for.
void RequireOwnWritesDone(Core& core, const uint8_t* begin, const uint8_t* end, const char* action) {
    auto at = core.written.lower_bound(begin);
    if (at != core.written.begin() && std::prev(at)->second.end > begin) --at;
    for (; at != core.written.end() && at->first < end; ++at) {
        if (!Complete(core, at->second.pipe, at->second.clock)) {
            Unordered(core, action, "wrote", at->second.pipe, "global memory", 0);
        }
    }
}

void RecordOwnWrite(Core& core, const uint8_t* begin, const uint8_t* end) {
    auto& written = core.written;
    auto at = written.lower_bound(begin);
    if (at != written.begin()) {
        auto before = std::prev(at);
        if (before->second.end > begin) {
            const GlobalWrite old = before->second;
            before->second.end = begin;
            if (old.end > end) written.emplace(end, old);
        }
    }
    while (at != written.end() && at->first < end) {
        const GlobalWrite old = at->second;
        at = written.erase(at);
        if (old.end > end) {
            written.emplace(end, old);
            break;
        }
    }
    written[begin] = GlobalWrite{end, core.issued[core.pipe], core.pipe};
}

uint8_t* LocateGlobal(const Region& region, uint64_t offset, uint64_t bytes) {
    if (!region.base) Fault("the global tensor has no buffer");
    if (!region.declared) Fault("SetGlobalBuffer gave the global tensor no extent");
    if (offset > region.bytes || bytes > region.bytes - offset) {
        Fault("bytes %llu to %llu are outside the global tensor of %llu bytes", (unsigned long long)offset,
              (unsigned long long)(offset + bytes), (unsigned long long)region.bytes);
    }
    return region.base + offset;
}

template <class T>
void AddElements(uint8_t* target, const uint8_t* source, uint64_t bytes) {
    for (uint64_t at = 0; at + sizeof(T) <= bytes; at += sizeof(T)) {
        T a, b;
        std::memcpy(&a, target + at, sizeof(T));
        std::memcpy(&b, source + at, sizeof(T));
        a = T(a + b);
        std::memcpy(target + at, &a, sizeof(T));
    }
}

}  // namespace

void SetCurrent(Core* core) { current = core; }
Core* CurrentCore() { return current; }

void Begin(const char* call, pipe_t pipe) {
    current->call = call;
    current->pipe = pipe;
    current->issued[pipe]++;
    if (pipe != PIPE_V) current->seen[pipe].at[pipe] = current->issued[pipe];
}

void Enter(const char* call) { current->call = call; }

void Fault(const char* format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    current->fault = FaultReport{true, current->block, current->call, text};
    throw KernelFault{};
}

int64_t BlockIndex() { return current->block; }
int64_t BlockCount() { return current->launch->blocks; }
bool OnCube() { return current->type == KERNEL_TYPE_AIC_ONLY; }

void DeclareKernel(KernelType type) {
    Enter("KERNEL_TASK_TYPE_DEFAULT");
    if (type == KERNEL_TYPE_MIX_AIC_1_2) Fault("kernels for cube and vector cores together are not emulated");
    current->declared = true;
    current->type = type;
}

void RequireVectorCore() {
    if (!current->declared) Fault("the kernel does not say its type: KERNEL_TASK_TYPE_DEFAULT is missing");
    if (current->type != KERNEL_TYPE_AIV_ONLY) Fault("a vector core's call in a kernel for cube cores");
}

void RequireCubeCore() {
    if (!current->declared) Fault("the kernel does not say its type: KERNEL_TASK_TYPE_DEFAULT is missing");
    if (current->type != KERNEL_TYPE_AIC_ONLY) Fault("a cube core's call in a kernel for vector cores");
}

const uint8_t* ReadLocalPrefix(const View& view, uint64_t bytes, uint32_t elementBytes, uint64_t* initialised) {
    const uint8_t* data = Locate(view, bytes);
    NoteRead(*current, view, bytes);
    *initialised = FirstPoisoned(data, bytes, elementBytes);
    if (bytes - *initialised >= 256) {
        Fault("it reads uninitialised unified buffer at element %llu", (unsigned long long)(*initialised / elementBytes));
    }
    return data;
}

const uint8_t* ReadLocal(const View& view, uint64_t bytes, uint32_t elementBytes) {
    const uint8_t* data = Locate(view, bytes);
    NoteRead(*current, view, bytes);
    const uint64_t bad = FirstPoisoned(data, bytes, elementBytes);
    if (bad < bytes) Fault("it reads uninitialised unified buffer at element %llu", (unsigned long long)(bad / elementBytes));
    return data;
}

uint8_t* WriteLocal(const View& view, uint64_t bytes) {
    Core& core = *current;
    uint8_t* data = Locate(view, bytes);
    const uint64_t first = view.buffer->offset + view.offset;
    for (uint64_t block = first / kBlockBytes; block * kBlockBytes < first + bytes; block++) {
        Granule& granule = core.granules[block];
        if (!Complete(core, granule.writer, granule.written)) {
            Unordered(core, "writes", "writes", granule.writer, "the unified buffer", block * kBlockBytes);
        }
        for (int pipe = 0; pipe < kPipes; pipe++) {
            if (!Complete(core, pipe_t(pipe), granule.read[pipe])) {
                Unordered(core, "writes", "reads", pipe_t(pipe), "the unified buffer", block * kBlockBytes);
            }
        }
        granule.writer = core.pipe;
        granule.written = core.issued[core.pipe];
    }
    return data;
}

void RequireAligned(const View& view) {
    if (!view.buffer) Fault("the local tensor was never allocated");
    const uint32_t at = view.buffer->offset + view.offset;
    if (at % kBlockBytes != 0) Fault("the local tensor starts at byte %u of its buffer, which is not a multiple of 32", view.offset);
}

void RequireSameOrApart(const View& a, uint64_t aBytes, const View& b, uint64_t bBytes) {
    if (!a.buffer || !b.buffer) Fault("the local tensor was never allocated");
    const uint64_t x = a.buffer->offset + a.offset, y = b.buffer->offset + b.offset;
    if (x != y && x < y + bBytes && y < x + aBytes) Fault("the operands overlap without being the same");
}

Region DeclareRegion(uint8_t* base, uint64_t bytes, bool sized) {
    for (const Extent& extent : current->launch->extents) {
        if (base < extent.base || base >= extent.base + extent.bytes) continue;
        const uint64_t left = uint64_t(extent.base + extent.bytes - base);
        if (sized && bytes > left) {
            Fault("%llu bytes are declared, the kernel's argument has %llu from there", (unsigned long long)bytes, (unsigned long long)left);
        }
        return Region{base, sized ? bytes : left, sized};
    }
    Fault("the address is outside every argument of the kernel");
}

const uint8_t* ReadGlobal(const Region& region, uint64_t offset, uint64_t bytes) {
    const uint8_t* data = LocateGlobal(region, offset, bytes);
    RequireOwnWritesDone(*current, data, data + bytes, "reads");
    NoteSpan(*current, data, bytes, false, false);
    return data;
}

uint8_t* WriteGlobal(const Region& region, uint64_t offset, uint64_t bytes) {
    uint8_t* data = LocateGlobal(region, offset, bytes);
    RequireOwnWritesDone(*current, data, data + bytes, "writes");
    RecordOwnWrite(*current, data, data + bytes);
    NoteSpan(*current, data, bytes, true, false);
    return data;
}

void StoreGlobal(const Region& region, uint64_t offset, const uint8_t* source, uint64_t bytes) {
    if (current->atomic != AtomicType::kNone) {
        AddGlobal(region, offset, source, bytes, current->atomic);
        return;
    }
    std::memcpy(WriteGlobal(region, offset, bytes), source, bytes);
}

void AddGlobal(const Region& region, uint64_t offset, const uint8_t* source, uint64_t bytes, AtomicType type) {
    Core& core = *current;
    uint8_t* data = LocateGlobal(region, offset, bytes);
    RequireOwnWritesDone(core, data, data + bytes, "adds to");
    RecordOwnWrite(core, data, data + bytes);
    NoteSpan(core, data, bytes, true, true);
    const std::lock_guard<std::mutex> lock(core.launch->mutex);
    switch (type) {
    case AtomicType::kFloat: AddElements<float>(data, source, bytes); break;
    case AtomicType::kHalf: AddElements<half>(data, source, bytes); break;
    case AtomicType::kInt32: AddElements<int32_t>(data, source, bytes); break;
    case AtomicType::kInt16: AddElements<int16_t>(data, source, bytes); break;
    case AtomicType::kNone: break;
    }
}

void SetAtomic(AtomicType type) {
    current->call = type == AtomicType::kNone ? "SetAtomicNone" : "SetAtomicAdd";
    current->atomic = type;
}

void MarkScalarWrite() { current->scalarWrites = true; }
void PublishScalarWrites() { current->scalarWrites = false; }

void StartPipe(const void* pipe) {
    if (current->tpipe) Fault("a second TPipe in one kernel");
    current->tpipe = pipe;
}

void InitQueue(const void* queue, TPosition position, uint32_t count, uint32_t bytes) {
    if (count == 0) Fault("a queue of 0 buffers");
    for (const Buffer& buffer : current->buffers) {
        if (buffer.owner == queue) Fault("the queue was initialised before");
    }
    for (uint32_t i = 0; i < count; i++) Claim(queue, position, BufferState::kFree, bytes);
}

Buffer* InitScratch(const void* owner, uint32_t bytes) {
    for (const Buffer& buffer : current->buffers) {
        if (buffer.owner == owner) Fault("the buffer was initialised before");
    }
    return Claim(owner, TPosition::VECCALC, BufferState::kScratch, bytes);
}

Buffer* AllocBuffer(const void* queue, TPosition position, pipe_t producer) {
    Core& core = *current;
    uint32_t live = 0, owned = 0;
    Buffer* found = nullptr;
    for (Buffer& buffer : core.buffers) {
        if (buffer.position == position && buffer.state != BufferState::kFree && buffer.state != BufferState::kScratch) live++;
        if (buffer.owner != queue) continue;
        owned++;
        if (!found && buffer.state == BufferState::kFree) found = &buffer;
    }
    if (owned == 0) Fault("the queue was not initialised with InitBuffer");
    if (!found) Fault("all %u buffers of the queue are in use: FreeTensor comes first", owned);
    if (live >= kMaxLivePerPosition) Fault("more than %u tensors of position %s at once", kMaxLivePerPosition, PositionName(position));
    found->state = BufferState::kAllocated;
    Join(core.seen[producer], found->released);
    FillPoison(core, *found);
    return found;
}

void EnqueueBuffer(const void* queue, const View& view, pipe_t producer) {
    if (!view.buffer || view.buffer->owner != queue) Fault("the tensor is not of this queue");
    if (view.buffer->generation != view.generation) Fault("the tensor was freed before");
    if (view.buffer->state != BufferState::kAllocated) Fault("the tensor was not allocated or is in the queue already");
    view.buffer->state = BufferState::kQueued;
    view.buffer->filled = Snapshot(*current, producer);
}

void DequeueBuffer(Buffer* buffer, pipe_t consumer) {
    buffer->state = BufferState::kTaken;
    Join(current->seen[consumer], buffer->filled);
}

void FreeBuffer(const void* queue, const View& view, pipe_t consumer) {
    if (!view.buffer || view.buffer->owner != queue) Fault("the tensor is not of this queue");
    if (view.buffer->generation != view.generation || view.buffer->state == BufferState::kFree) Fault("the tensor was freed before");
    if (view.buffer->state == BufferState::kQueued) Fault("the tensor is still in the queue");
    view.buffer->state = BufferState::kFree;
    view.buffer->generation++;
    view.buffer->released = Snapshot(*current, consumer);
}

void SetEvent(HardEvent event, int32_t id) {
    Enter("SetFlag");
    RequireEvent(event, id);
    Event& flag = current->events[int(event)][id];
    if (flag.set) Fault("event %d of %s is set already and nothing waited for it", id, PipesOf(event).name);
    flag.set = true;
    flag.clock = Snapshot(*current, PipesOf(event).from);
}

void WaitEvent(HardEvent event, int32_t id) {
    Enter("WaitFlag");
    RequireEvent(event, id);
    Event& flag = current->events[int(event)][id];
    if (!flag.set) Fault("event %d of %s is never set: the core would hang", id, PipesOf(event).name);
    flag.set = false;
    Join(current->seen[PipesOf(event).to], flag.clock);
}

TEventID FreeEvent(HardEvent event) {
    Enter("FetchEventID");
    RequireEvent(event, 0);
    for (int id = 0; id < kEventsPerPair; id++) {
        if (!current->events[int(event)][id].set) return TEventID(id);
    }
    Fault("all events of %s are set", PipesOf(event).name);
}

void Barrier(pipe_t pipe) {
    Core& core = *current;
    Enter("PipeBarrier");
    if (pipe == PIPE_ALL) {
        for (Clock& clock : core.seen) std::memcpy(clock.at, core.issued, sizeof core.issued);
    } else {
        core.seen[pipe].at[pipe] = core.issued[pipe];
    }
}

void Core::Reset(Launch* newLaunch, int64_t newBlock) {
    launch = newLaunch;
    block = newBlock;
    declared = false;
    type = KERNEL_TYPE_AIV_ONLY;
    call = "the kernel";
    std::memset(issued, 0, sizeof issued);
    for (Clock& clock : seen) clock = Clock{};
    unified.resize(kUnifiedBytes);
    granules.resize(kUnifiedBytes / kBlockBytes);
    unifiedUsed = 0;
    tpipe = nullptr;
    buffers.clear();
    for (auto& pair : events) {
        for (Event& event : pair) event = Event{};
    }
    atomic = AtomicType::kNone;
    scalarWrites = false;
    spans.clear();
    written.clear();
    fault = FaultReport{};
}

void Core::Finish() {
    call = "the end of the kernel";
    for (const Buffer& buffer : buffers) {
        if (buffer.state == BufferState::kAllocated || buffer.state == BufferState::kTaken) Fault("a tensor of position %s was not freed", PositionName(buffer.position));
        if (buffer.state == BufferState::kQueued) Fault("a tensor of position %s was left in its queue", PositionName(buffer.position));
    }
    for (int event = 0; event < int(HardEvent::MAX); event++) {
        for (int id = 0; id < kEventsPerPair; id++) {
            if (events[event][id].set) Fault("event %d of %s was set and nothing waited for it", id, PipesOf(HardEvent(event)).name);
        }
    }
    if (atomic != AtomicType::kNone) Fault("atomic mode is still on");
    if (scalarWrites) Fault("scalar writes to global memory were not published with DataCacheCleanAndInvalid");
}

}  // namespace AscendC::emulator
