//go:build !linux

package main

import "errors"

func randomFaults(int) error { return errors.New("ranks are processes on Linux only") }
