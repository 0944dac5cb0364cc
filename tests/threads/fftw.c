// Transforms and transforms back with the threads of FFTW.
#include "check.h"

#include <fftw3.h>
#include <math.h>

int main(void) {
    enum { SIZE = 1 << 18 };
    CHECK(fftw_init_threads());
    fftw_plan_with_nthreads(4);
    fftw_complex *data = fftw_alloc_complex(SIZE);
    fftw_plan there = fftw_plan_dft_1d(SIZE, data, data, FFTW_FORWARD, FFTW_ESTIMATE);
    fftw_plan back = fftw_plan_dft_1d(SIZE, data, data, FFTW_BACKWARD, FFTW_ESTIMATE);
    for (int i = 0; i < SIZE; i++) data[i][0] = i % 1000, data[i][1] = i % 77;
    fftw_execute(there);
    fftw_execute(back);
    double worst = 0;
    for (int i = 0; i < SIZE; i++) {
        worst = fmax(worst, fabs(data[i][0] / SIZE - i % 1000) + fabs(data[i][1] / SIZE - i % 77));
    }
    CHECK(worst < 1e-8);
    fftw_destroy_plan(there);
    fftw_destroy_plan(back);
    fftw_free(data);
    puts("fftw: all right");
    return 0;
}
