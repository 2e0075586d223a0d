/* Joins ranges of files into reads.
 *
 * A disk, and a server even more so, answers one request for two neighbours faster than two requests, as long as the bytes
 * between them are few. Each read begins with the first range that is left and takes in the next one while that lies close
 * enough and the bytes read for nothing stay in proportion:
 *
 *     for each range:
 *         if it touches the last read, or lies closer than `gap` to it and the read would be at most `most` times its wanted
 *         bytes: extend the read
 *         else: begin another
 */
#include "internal.h"

uint64_t wm_join_ranges(uint32_t *files, uint64_t *starts, uint64_t *stops, uint64_t *wanted, uint64_t n, uint64_t gap,
                        double most) {
    uint64_t m = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t file = files[i];
        uint64_t start = starts[i], stop = stops[i];
        if (stop <= start) continue;
        if (m > 0 && files[m - 1] == file) {
            uint64_t end = stops[m - 1], begin = starts[m - 1], fresh = start < end ? end : start;
            fresh = stop > fresh ? stop - fresh : 0;
            int joins = start <= end;
            if (!joins && start - end < gap) joins = (double)(stop - begin) <= most * (double)(wanted[m - 1] + fresh);
            if (joins) {
                wanted[m - 1] += fresh;
                if (stop > end) stops[m - 1] = stop;
                continue;
            }
        }
        files[m] = file;
        starts[m] = start;
        stops[m] = stop;
        wanted[m] = stop - start;
        m++;
    }
    return m;
}
