cell Net {
    buffer a: f32[3]           // want `E0313: the buffer "a" needs an initialiser; a buffer starts with zeros`
    buffer b: f32[3] = 2       // want `E0303: a buffer starts with an initialiser, not the number 2; constant.2.`
    buffer c: u8[3] = zeros()  // want `E0303: a buffer is of type f32, i32 or bool, not u8`
    buffer d: i32[3] = constant(1/2) // want `E0305: 0.5 is no value of type i32`
    buffer e: bool[3] = constant(2)  // want `E0305: 2 is no value of type bool`
    buffer f: f32[3] = uniform(1)    // want `E0303: uniform gives every element a value of its own`
    buffer g: f32[3] = zeros() @stage(1) // want `E0105: a buffer is on the stage of its cell and takes no marks; mark the cell`
    buffer h: f32[3] = zeros()
    buffer h: f32[3] = zeros() // want `E0202: the member "h" is defined twice`
    construct(x) { return x }
}
infer a { network = Net(); input x: f32[2, 3] }
-----
cell Net {
    buffer k: f32[2, 3] = zeros()
    construct(x) {
        k = x[0]           // want `E0303: the buffer .k. is a tensor f32\[2,3\], not a tensor f32\[3\]; declare it as f32\[3\]`
        k = cast(x, i32)   // want `E0303: the buffer .k. is a tensor f32\[2,3\], not a tensor i32\[2,3\]; cast\(..., f32\)`
        k = 3              // want `E0303: the buffer .k. is a tensor f32\[2,3\], not the number 3; 3 \+ zeros`
        k = relu           // want `E0303: the buffer .k. is a tensor f32\[2,3\], not the function relu`
        return x
    }
}
infer a { network = Net(); input x: f32[2, 3] }
-----
cell Net {
    buffer j: f32[2, 3] = zeros()
    copy = j // want `E0303: a buffer belongs to the cell that declares it and has a value inside a construct only; read it in the construct`
    construct(x) { return x }
}
infer a { network = Net(); input x: f32[2, 3] }
-----
cell Inner {
    buffer k: f32[2, 3] = zeros()
    construct(k) { return k } // want `E0202: the argument "k" of the construct hides the buffer of that name; give one of them another name`
}
cell Net {
    inner = Inner()
    construct(x) { return inner(x) }
}
infer a { network = Net(); input x: f32[2, 3] }
-----
cell Net {
    buffer j: f32[2, 3] = zeros()
    construct(x) {
        for j in 0..2 {
            j = x // want `E0203: "j" is a loop variable and cannot be assigned`
        }
        return x + j
    }
}
infer a { network = Net(); input x: f32[2, 3] }
-----
// options: micro=3
cell Net {
    buffer j: f32[12 / micro_batch_num, 3] = zeros()
    construct(x) {
        j = j + x[0..3] // want `E0402: .add.: shapes \[4, 3\] and \[3, 3\] do not broadcast`
        return x + j
    }
}
infer a { network = Net(); input x: f32[12, 3] }
