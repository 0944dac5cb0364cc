! What Fortran adds to OpenMP: workshare, common blocks that are private to a thread, reductions of arrays, numbers of 8 bytes.
program openmp
   use omp_lib
   implicit none
   integer, parameter :: n = 5000
   real(8) :: a(n), b(n), total, parts(4)
   integer :: i, j, right, threads
   integer(8) :: large
   integer(omp_lock_kind) :: lock
   integer :: mine, block_value
   common /block/ mine, block_value
!$omp threadprivate(/block/)

   call omp_set_num_threads(4)
   threads = 0
!$omp parallel reduction(+:threads)
   threads = threads + 1
!$omp end parallel
   call check(threads == 4, 1)

!$omp parallel workshare
   a = 2.0d0
   b = a*3.0d0
!$omp end parallel workshare
   call check(all(b == 6.0d0), 2)

   total = 0
   parts = 0
!$omp parallel do reduction(+:total, parts) schedule(guided, 3)
   do i = 1, n
      total = total + a(i)*b(i)
      parts(mod(i, 4) + 1) = parts(mod(i, 4) + 1) + 1
   end do
   call check(total == 12.0d0*n .and. all(parts == n/4), 3)

   mine = 5
   block_value = 7
   right = 0
!$omp parallel copyin(/block/) reduction(+:right)
   if (mine == 5 .and. block_value == 7) right = right + 1
   mine = mine + omp_get_thread_num()
!$omp end parallel
   call check(right == 4, 4)

   large = 0
!$omp parallel do reduction(+:large) collapse(2) schedule(dynamic)
   do i = 1, 20
      do j = 1, 20
         large = large + int(i, 8)*j
      end do
   end do
   call check(large == 44100_8, 5)

   call omp_init_lock(lock)
   right = 0
!$omp parallel private(i)
   do i = 1, 50
      call omp_set_lock(lock)
      right = right + 1
      call omp_unset_lock(lock)
   end do
!$omp single
!$omp task shared(right)
!$omp critical
   right = right + 1000
!$omp end critical
!$omp end task
!$omp end single
!$omp end parallel
   call omp_destroy_lock(lock)
   call check(right == 1200, 6)
   print '(a)', 'openmp in Fortran: all right'
contains
   subroutine check(is_so, number)
      logical, intent(in) :: is_so
      integer, intent(in) :: number
      if (is_so) return
      print *, 'check ', number, ' is false'
      stop 1
   end subroutine check
end program openmp
